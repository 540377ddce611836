import multiprocessing
import os

TABLE = None  # filled in before the workers are forked, and found by them


def begin(a_lock, a_counter, words):
    global lock, counter
    lock, counter = a_lock, a_counter
    os.environ["WORDS"] = words


def count(x):
    with lock:
        counter.value += x
    return os.environ["WORDS"], TABLE[x % 3]


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    TABLE = ["a", "b", "c"]
    total = context.Value("i", 0)
    with context.Pool(2, initializer=begin, initargs=(context.Lock(), total, "begun")) as pool:
        print(pool.map(count, range(50))[:4], total.value)
