"""``python -m headwater``."""

from headwater.cli import main

if __name__ == "__main__":
    main()
