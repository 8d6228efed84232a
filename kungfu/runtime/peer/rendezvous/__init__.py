"""Where the peers of a view meet: once over what becomes of it, and again where another one begins."""
