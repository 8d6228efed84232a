"""The parts of the step in TensorFlow's graph."""
