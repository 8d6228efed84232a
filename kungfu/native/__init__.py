"""The compiled part of kungfu: all of its C++, and the code that builds and loads it."""

from kungfu.native.builder import cache_folder, handle_of, is_available, is_loaded, load, load_state, prepare

__all__ = ["cache_folder", "handle_of", "is_available", "is_loaded", "load", "load_state", "prepare"]
