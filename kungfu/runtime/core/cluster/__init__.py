"""The agent's knowledge of its job, and the decisions that follow from an event, as pure functions."""
