"""``kungfu chaos``: injects faults into a running job, and tells what held."""
