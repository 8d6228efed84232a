"""The parts of the step that live in TensorFlow's graph."""
