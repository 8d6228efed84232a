"""Processes, views, barriers and data: what carries out a policy's decisions.

Only ``attachment/`` and ``state/variables.py`` import TensorFlow.
"""
