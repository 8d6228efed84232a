"""Messages, and the only place that opens a channel or a server."""
