"""The replicated state: compared between peers, and transferred to those that lack it."""
