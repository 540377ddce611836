"""What a process and those that it has started have done so far, as one number that grows."""

import contextlib

__all__ = ["activity_of"]

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
