"""``python -m specframe``."""

from specframe.cli import main

if __name__ == "__main__":
    main()
