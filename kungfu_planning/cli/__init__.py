"""The commands of ``kungfu plan``."""
