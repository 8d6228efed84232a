"""The agents of several hosts as one: the head decides, the others follow, and one of them takes over if it is lost."""
