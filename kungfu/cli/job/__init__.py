"""The commands that look at a running job and steer it."""
