from concurrent.futures import ProcessPoolExecutor, as_completed, wait


def begin(word):
    global greeting
    greeting = word


def greet(name):
    if not name:
        raise ValueError("nobody")
    return f"{greeting} {name}"


def power(a, *, by=2):
    return a**by


if __name__ == "__main__":
    with ProcessPoolExecutor(2, initializer=begin, initargs=("hello",)) as executor:
        todo = {executor.submit(greet, name): name for name in ["ada", "", "bob"]}
        print(sorted(todo[one] or str(one.exception()) for one in as_completed(todo)))
        print(sorted(one.result() for one in todo if not one.exception()))
        print(executor.submit(power, 3, by=3).result(), list(executor.map(power, range(9), chunksize=4)))
        print(len(wait([executor.submit(power, x) for x in range(20)]).done))
        print(type(executor.submit(lambda: 1).exception()).__name__)
    try:
        executor.submit(power, 1)
    except RuntimeError as error:
        print(error)
    with ProcessPoolExecutor(2) as executor:
        executor.submit(greet, "").result()
