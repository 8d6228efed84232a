"""Reads the record of a run and reports it to users."""
