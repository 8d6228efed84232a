"""Requests of those who steer a job from outside: what may be asked, what is refused, how far each one is."""
