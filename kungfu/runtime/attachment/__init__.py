"""What the all-reduce of the graph is plugged into."""
