"""The schedulers: rigid policies, Tiresias rigid and elastic, and Elan's two policies, each a `ClusterPolicy`."""
