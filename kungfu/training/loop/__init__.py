"""The training loop of a run: attachment, steps, barriers, recovery and shutdown."""
