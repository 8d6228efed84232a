"""The runtime inside a training process: its gRPC service, its barriers with other peers, and state transfer."""
