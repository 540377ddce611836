"""Keep the processors busy, to see whether something depends on a machine's leisure.

    python scripts/busy.py 4 &
    make test; kill %1

Each process counts without end at usual priority. They leave with this one.
"""

import argparse
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("n_processes", type=int, metavar="PROCESSES", help="how many count, such as 4")
    n_processes = parser.parse_args().n_processes
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    for _ in range(n_processes):
        multiprocessing.Process(target=spin, daemon=True).start()
    try:
        signal.pause()
    except KeyboardInterrupt:
        sys.exit(0)


if __name__ == "__main__":
    main()
