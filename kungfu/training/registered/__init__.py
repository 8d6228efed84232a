"""What outlasts a view and a process: registered values, hooks on a rescale, checkpoints."""
