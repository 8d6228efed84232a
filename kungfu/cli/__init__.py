"""The two commands: ``kungfu-run`` starts a job, ``kungfu`` tells of policies and runs."""
