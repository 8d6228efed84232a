"""``kungfu doctor``: what this machine has for training with kungfu, and what is to be done about the rest."""
