"""Exports of a running job to other programs: TensorBoard and Prometheus."""
