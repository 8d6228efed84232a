"""Planning without training: schedulers for clusters of jobs, and GPUs for the stages of a hyperparameter search.

From kungfu, the package imports only ``kungfu.errors``. Kungfu finds the commands of ``cli`` by their entry points.
"""
