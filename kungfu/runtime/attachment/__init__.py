"""Attachments: the all-reduce implementations that the graph can use."""
