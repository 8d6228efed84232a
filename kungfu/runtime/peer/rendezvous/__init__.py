"""The two rendezvous of a barrier: at the first, the peers of a view decide; at the second, the next view starts."""
