"""The events of a job: their types, and how they are written and read."""
