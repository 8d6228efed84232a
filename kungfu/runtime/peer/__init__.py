"""A training process in the job: its service, its meetings with others, its state on the wire."""
