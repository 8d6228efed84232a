"""The two rendezvous of a barrier: the peers of a view meet to decide, and those of the next one to begin it."""
