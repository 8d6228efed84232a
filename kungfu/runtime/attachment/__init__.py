"""Attachments: the all-reduces to which the graph is connected."""
