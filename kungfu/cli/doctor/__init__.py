"""``kungfu doctor``: the requirements of training on this machine, with remedies for those that are missing."""
