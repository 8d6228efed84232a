"""Planning without training: schedulers for clusters of jobs, and GPUs for the stages of a hyperparameter search.

The package imports only ``kungfu.errors`` of kungfu, which finds the commands of ``cli`` by their entry points.
"""
