"""A training run in its loop: attaching, steps, barriers, recovery, and the end."""
