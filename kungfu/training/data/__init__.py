"""Data: where samples come from, in which order peers take them, and the loader that is ahead of the step."""

from kungfu.training.data.feed import Feed, Remainder, checked_feed
from kungfu.training.data.loader import batches
from kungfu.training.data.stamps import Stamps, is_stale

__all__ = ["Feed", "Remainder", "Stamps", "batches", "checked_feed", "is_stale"]
