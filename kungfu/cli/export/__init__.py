"""What a job tells other programs while it runs: TensorBoard and Prometheus."""
