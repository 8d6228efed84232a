"""Monitors: measurements of a run, as signals."""

from kungfu.monitor.completion import cost_so_far, remaining_samples, remaining_seconds
from kungfu.monitor.noise_scale import NoiseScaleEstimate, gradient_noise_scale, noise_scale_estimate
from kungfu.monitor.stragglers import slowest_in_a_row, straggler_fractions, stragglers
from kungfu.monitor.throughput import throughput
from kungfu.monitor.throughput_by_size import ThroughputBySize, scaling_efficiency, throughput_by_size
from kungfu.monitor.variance import gradient_variance

__all__ = [
    "NoiseScaleEstimate",
    "ThroughputBySize",
    "cost_so_far",
    "gradient_noise_scale",
    "gradient_variance",
    "noise_scale_estimate",
    "remaining_samples",
    "remaining_seconds",
    "scaling_efficiency",
    "slowest_in_a_row",
    "straggler_fractions",
    "stragglers",
    "throughput",
    "throughput_by_size",
]
