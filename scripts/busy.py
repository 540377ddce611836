"""Keep the processors busy, to see whether something depends on a machine's leisure.

    python scripts/busy.py 4 &
    make test; kill %1

Each process counts without end at usual priority. They leave with this one.
"""

import multiprocessing
import signal
import sys


def spin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    while parent is not None and parent.is_alive():
        for _ in range(10_000_000):
            pass


def main() -> None:
    try:
        (n_processes,) = map(int, sys.argv[1:])
    except ValueError:
        sys.exit(f"busy.py takes the number of processes, not {sys.argv[1:]}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    for _ in range(n_processes):
        multiprocessing.Process(target=spin, daemon=True).start()
    try:
        signal.pause()
    except KeyboardInterrupt:
        sys.exit(0)


if __name__ == "__main__":
    main()
