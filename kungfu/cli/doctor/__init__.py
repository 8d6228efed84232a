"""``kungfu doctor``: checks this machine for the requirements of training, and suggests remedies."""
