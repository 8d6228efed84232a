"""The schedulers: rigid ones, Tiresias rigid and elastic, and Elan's two elastic ones, each a `ClusterPolicy`."""
