"""``kungfu chaos``: injects faults into a running job, and reports the guarantees that held."""
