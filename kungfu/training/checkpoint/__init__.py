"""Checkpoints: drawn up between two steps, written while training goes on, and resumed."""
