"""Programs that a user might write."""
