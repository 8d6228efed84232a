"""``kungfu replay``: replays a plan over a recorded run, and compares its decisions with the run's."""
