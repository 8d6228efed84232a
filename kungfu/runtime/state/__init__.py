"""The replicated state: its comparison between peers, and its transfer to peers that lack it."""
