"""The two commands: ``kungfu-run`` starts a job; ``kungfu`` explains policies and runs, and controls jobs."""
