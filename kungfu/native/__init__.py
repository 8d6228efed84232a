"""The compiled part of kungfu: all C++ sources, and the Python code that builds and loads the libraries."""

from kungfu.native.builder import (
    cache_folder,
    check_compiler,
    handle_of,
    is_available,
    is_loaded,
    load,
    load_state,
    prepare,
)

__all__ = ["cache_folder", "check_compiler", "handle_of", "is_available", "is_loaded", "load", "load_state", "prepare"]
