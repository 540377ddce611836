import multiprocessing.pool
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor


class OwnPool(multiprocessing.pool.Pool):
    def twice(self, fn, items):
        return [2 * x for x in self.map(fn, items)]


def inner(x):
    with ProcessPoolExecutor(1) as executor:
        return executor.submit(abs, x).result()


if __name__ == "__main__":
    with OwnPool(2) as pool:
        print(pool.twice(abs, [-1, -2]), isinstance(pool, multiprocessing.pool.Pool))
    with ProcessPoolExecutor(2) as executor, ThreadPoolExecutor(2) as threads:
        print(list(executor.map(inner, [-3, -4])), list(threads.map(abs, [-5])))
    with multiprocessing.Pool(1) as pool:
        print(isinstance(pool, multiprocessing.pool.Pool), pool.map(abs, [-1]))
