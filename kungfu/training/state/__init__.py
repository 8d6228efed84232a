"""State that goes along with training: registered values, checkpoints, the description of the program."""
