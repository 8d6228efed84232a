"""``python -m kungfu.native`` builds the libraries and prints the path of the larger library."""

from kungfu.native.builder import load_all, print_built

if __name__ == "__main__":
    print_built(load_all)
