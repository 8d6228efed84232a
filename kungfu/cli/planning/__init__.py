"""Commands that decide and start nothing: simulating a scheduler, planning a search."""
