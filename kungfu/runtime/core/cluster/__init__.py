"""The agent's knowledge of its job, and what it decides: pure, event by event."""
