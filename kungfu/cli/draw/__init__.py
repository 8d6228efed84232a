"""``kungfu draw DIR``: a run in one picture, over its steps."""
