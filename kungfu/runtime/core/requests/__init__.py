"""Requests to a job from outside: their admission, their progress, and the log of their answers."""
