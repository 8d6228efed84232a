"""The console of a running job: its output and status on the screen, and the summary at its end."""
