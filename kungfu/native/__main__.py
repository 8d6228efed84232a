"""``python -m kungfu.native`` builds the libraries and prints the path of the larger library."""

from kungfu.native.builder import main

if __name__ == "__main__":
    main()
