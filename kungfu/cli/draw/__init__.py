"""``kungfu draw DIR``: draws a run over its steps."""
