import os
from multiprocessing import Pool
from multiprocessing.pool import ThreadPool


def who(_):
    return os.getpid()


def nested(x):
    with ThreadPool(2) as threads:
        return sum(threads.map(abs, [x, -x]))


def daemons_child(_):
    try:
        Pool(1)
    except AssertionError as error:
        return str(error)


if __name__ == "__main__":
    pool = Pool(2, maxtasksperchild=5)
    pids = pool.map(who, range(40), chunksize=1)
    print(len(set(pids)) >= 8, max(map(pids.count, pids)) <= 5)
    pool.close()
    pool.join()
    with Pool(2) as pool:
        print(pool.map(nested, range(5)), pool.apply(daemons_child, (1,)))
