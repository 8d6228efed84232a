"""The commands that inspect and control a running job."""
