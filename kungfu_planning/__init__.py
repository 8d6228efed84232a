"""Planning without training: schedulers for clusters of jobs, and GPUs for the stages of a hyperparameter search.

The package shares only ``kungfu.errors`` with kungfu, which finds the commands of ``cli`` by their entry points.
"""
