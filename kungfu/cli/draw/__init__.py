"""``kungfu draw RUN``: draws a run over its steps."""
