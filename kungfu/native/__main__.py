"""``python -m kungfu.native`` builds both libraries, and prints the path of the library with the TensorFlow ops."""

from kungfu.native.builder import load_all, print_built

if __name__ == "__main__":
    print_built(load_all)
