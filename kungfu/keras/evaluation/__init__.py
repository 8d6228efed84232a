"""``evaluate`` and ``predict`` of a job, and the validation of its ``fit``, shared among the peers."""
