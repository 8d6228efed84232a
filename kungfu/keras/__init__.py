"""Keras' ``model.fit`` as the training of a job: one line between ``compile`` and ``fit``."""

from kungfu.keras.attach_model import attach

__all__ = ["attach"]
