"""Adaptive training policies, compiled into TensorFlow's training graph."""
