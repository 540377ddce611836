"""``python -m evenload`` is the same as ``evenload``."""

import gc

from evenload.cli import main


def run() -> None:
    """Run the command line as all that this process does."""
    try:
        main()
    finally:
        # What is left ends with the process; looking through it for cycles takes as long as a small proof.
        gc.freeze()


if __name__ == "__main__":
    run()
