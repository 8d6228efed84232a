"""Keras' ``model.fit`` under a job: one added line between ``compile`` and ``fit``."""

from kungfu.keras.attach_model import attach

__all__ = ["attach"]
