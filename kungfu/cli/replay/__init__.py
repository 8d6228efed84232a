"""``kungfu replay``: a plan over a recorded run, beside what really happened."""
