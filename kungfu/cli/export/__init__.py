"""Exports of a job while it runs, for other programs: TensorBoard and Prometheus."""
