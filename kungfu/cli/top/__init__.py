"""``kungfu top``: shows all jobs of this machine at a glance."""
