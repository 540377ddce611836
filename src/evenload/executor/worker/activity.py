"""What a process and those that it has started have done so far, and the memory that they use."""

import contextlib
import os
import sys

__all__ = ["activity_of", "own_memory_of"]

MIB = 2**20


def activity_of(pid: int) -> float:
    """Seconds of a processor, and MiB read and written (Linux), of process ``pid`` and its descendants.

    0.0 if there is no such process. Of no use but to see that it changes.
    """
    import psutil  # takes a while, and is needed only where a start takes long

    done = 0.0
    with contextlib.suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error, OSError):
                done += sum(one.cpu_times()[:4])  # its own, and of children that have ended
                if hasattr(one, "io_counters"):
                    counted = one.io_counters()
                    done += (counted.read_chars + counted.write_chars) / MIB
    return done


def own_memory_of(pid: int) -> int:
    """Bytes of memory that process ``pid`` and its descendants have for themselves; 0 if there is none.

    Not counted is what others have, too, or the system can take back: shared memory, and pages of files. On
    other systems than Linux it is all resident memory of ``pid`` alone.
    """
    if sys.platform != "linux":
        import psutil

        with contextlib.suppress(psutil.Error):
            return psutil.Process(pid).memory_info().rss
        return 0
    n_bytes, todo = 0, [pid]
    while todo:
        one = todo.pop()
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended
            with open(f"/proc/{one}/statm") as file:
                _, resident, shared, *_ = map(int, file.read().split())
            n_bytes += (resident - shared) * os.sysconf("SC_PAGE_SIZE")
            for thread in os.listdir(f"/proc/{one}/task"):
                with open(f"/proc/{one}/task/{thread}/children") as file:
                    todo += map(int, file.read().split())
    return n_bytes
