"""``kungfu top``: all jobs of this machine at a glance."""
