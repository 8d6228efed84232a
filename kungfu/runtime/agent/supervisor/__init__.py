"""Supervises the peers of this host: starts, watches, signals, kills and reaps their processes."""
