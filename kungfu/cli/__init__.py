"""The two commands: ``kungfu-run`` starts a job; ``kungfu`` explains policies and recorded runs, and controls jobs."""
