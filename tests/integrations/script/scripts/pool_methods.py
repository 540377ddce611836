import multiprocessing
import os
import time
from multiprocessing import Pool, TimeoutError


def f(x):
    return x * x


def calculate(function, arguments):
    return f"{multiprocessing.current_process().daemon} {function.__name__}{arguments} = {function(*arguments)}"


def mul(a, b):
    return a * b


def slow(seconds):
    time.sleep(seconds)
    return "late"


if __name__ == "__main__":
    with Pool(processes=2) as pool:
        print(pool.map(f, range(10)))
        print(sorted(pool.imap_unordered(f, range(10))))
        print(list(pool.imap(f, (x for x in range(10)), chunksize=3)))
        print(pool.apply_async(f, (20,)).get(timeout=100))
        print(pool.apply(calculate, (mul, (6, 7))))
        print(pool.apply_async(os.getpid, ()).get() != os.getpid(), pool.apply(os.getppid) == os.getpid())
        print([one.get() for one in [pool.apply_async(calculate, (mul, (i, 7))) for i in range(5)]])
        try:
            pool.apply_async(slow, (60,)).get(timeout=0.1)
        except TimeoutError:
            print("We lacked patience and got a multiprocessing.TimeoutError")
        print(pool.starmap(mul, zip(range(5), range(5))), pool.starmap_async(mul, [(2, 3)]).get())
    try:
        pool.apply(f, (1,))
    except ValueError as error:
        print(error)
