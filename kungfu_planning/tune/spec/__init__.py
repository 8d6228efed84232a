"""Specifications of searches in YAML: typed, with units, and with a schema."""

from kungfu_planning.tune.spec.tuning_spec import TuningSpec, parse_spec, read_spec, tuning_schema
from kungfu_planning.tune.spec.units import duration_s

__all__ = ["TuningSpec", "duration_s", "parse_spec", "read_spec", "tuning_schema"]
