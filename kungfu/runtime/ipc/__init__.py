"""Messages between peers and agents; the only package that opens a gRPC channel or server."""
