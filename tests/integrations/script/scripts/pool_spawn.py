import multiprocessing
import sys

print(__name__, __file__.rpartition("/")[2], sys.argv[1:])
STATE = {"main": __name__ == "__main__"}


def look(x):
    return x, STATE["main"], multiprocessing.current_process().name.rpartition("-")[0]


if __name__ == "__main__":
    multiprocessing.freeze_support()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(look, range(3)), flush=True)
    sys.exit(3)
