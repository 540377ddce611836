"""``python -m evenload`` is the same as ``evenload``."""

from evenload.cli import main

if __name__ == "__main__":
    main()
