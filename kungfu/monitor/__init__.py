"""Monitors: what a run shows about itself, as signals."""

from kungfu.monitor.noise_scale import gradient_noise_scale
from kungfu.monitor.throughput import throughput

__all__ = ["gradient_noise_scale", "throughput"]
