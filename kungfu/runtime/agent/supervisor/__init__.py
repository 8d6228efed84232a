"""The processes of this host."""
