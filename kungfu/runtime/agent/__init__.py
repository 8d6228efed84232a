"""The agent of a host (`kungfu-run`): its role as leader or follower, its peers' processes, and its record."""
