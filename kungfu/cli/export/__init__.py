"""Exports of a running job to other programs: TensorBoard, Prometheus, MLflow, and a command for its events."""
