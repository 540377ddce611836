from multiprocessing import Pool


def f(x):
    return x * x


if __name__ == "__main__":
    with Pool(2) as p:
        print(p.map(f, [1, 2, 3]))
        print(p.map(f, range(200), chunksize=7) == [x * x for x in range(200)])
        print(p.map(f, []), p)
