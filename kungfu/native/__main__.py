"""``python -m kungfu.native`` builds the libraries and prints where they are."""

from kungfu.native.builder import main

if __name__ == "__main__":
    main()
