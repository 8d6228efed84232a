"""The two rendezvous of a barrier: at the first, a view's peers decide; at the second, the next view's peers begin."""
