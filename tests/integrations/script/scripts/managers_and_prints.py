import sys
from multiprocessing import Manager, Pool, Process, Queue


def note(arguments):
    names, x = arguments
    names[x] = x * 10
    if x == 3:
        print("from a worker", flush=True)
        print("and its errors", file=sys.stderr, flush=True)


def child(queue):
    queue.put("a process of its own")


if __name__ == "__main__":
    with Manager() as manager, Pool(2) as pool:
        names = manager.dict()
        pool.map(note, [(names, x) for x in range(6)])
        print(sorted(names.items()))
        queue = Queue()
        process = Process(target=child, args=(queue,))
        process.start()
        print(queue.get())
        process.join()
