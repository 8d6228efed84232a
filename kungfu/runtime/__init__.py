"""Processes, views, barriers and data: the runtime that carries out a policy's decisions.

Only ``attachment/`` and ``state/variables.py`` import TensorFlow.
"""
