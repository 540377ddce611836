import multiprocessing


class Odd(Exception):
    def __init__(self, x):
        super().__init__(f"{x} is odd")
        self.x = x

    def __reduce__(self):
        return Odd, (self.x,)


def half(x):
    if x % 2:
        raise Odd(x)
    return x // 2


def numbers():
    yield 2
    yield 4
    raise KeyError("no more")


if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool:
        results = pool.map_async(half, [2, 4], callback=lambda all: print("all", all))
        print(results.get(), results.successful())
        pool.apply_async(half, (3,), error_callback=lambda error: print("error", error.x)).wait()
        reader = pool.imap(half, [2, 5, 8])
        print(next(reader))
        try:
            next(reader)
        except Odd as error:
            print(type(error.__cause__).__name__, error)
        print(next(reader))
        try:
            print(pool.apply(lambda: 1))
        except Exception as error:
            print(type(error).__name__)
        try:
            list(pool.imap(half, numbers()))
        except KeyError as error:
            print("reading", error)
        pool.map(half, [2, 7])
