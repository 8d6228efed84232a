"""The user's step function while TensorFlow traces it: its effects, random numbers and variables."""
