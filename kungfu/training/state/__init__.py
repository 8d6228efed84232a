"""State besides model and optimizer: registered values, checkpoints, the description of the program."""
