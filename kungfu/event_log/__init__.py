"""The events of a job: their types, codec, fold and formatting."""
