"""Checkpoints: taken between two steps, written while training goes on, and resumed."""
