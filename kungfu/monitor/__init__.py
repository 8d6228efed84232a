"""Monitors: what a run shows about itself, as signals."""

from kungfu.monitor.noise_scale import gradient_noise_scale
from kungfu.monitor.stragglers import relative_speed, stragglers
from kungfu.monitor.throughput import throughput
from kungfu.monitor.variance import gradient_variance

__all__ = ["gradient_noise_scale", "gradient_variance", "relative_speed", "stragglers", "throughput"]
