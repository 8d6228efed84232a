"""The agent's knowledge of its job and its decisions, as pure functions of events."""
