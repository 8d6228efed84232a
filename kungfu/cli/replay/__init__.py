"""``kungfu replay``: replays a plan over a recorded run, and compares the plan's decisions with the run's."""
