"""What goes along with training: registered values, checkpoints, and the description of the program."""
