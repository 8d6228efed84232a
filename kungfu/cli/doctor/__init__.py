"""``kungfu doctor``: checks the requirements of training on this machine, with remedies for missing ones."""
