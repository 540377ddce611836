"""Run a command and stop its processes for moments, at random, as a loaded machine does.

    python scripts/stalls.py --seed 7 -- python -m pytest -n0 tests/executor

One process at a time (the command's own or one below it, each depth as often as another), now and then
all; mostly for less than a second. It finds what depends on two processes that keep pace. The seed decides
when, how long and at which depth; which process that is depends on what runs then. Exits as the command did.
A process that a test has stopped is left alone, unless it did so while this one had stopped it, too.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

import psutil

HALTED = {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}


def run_with_stalls(command: Sequence[str], seed: int, most_s: float, every_s: float, verbose: bool) -> int:
    """Run the command, its processes stopped now and then; return its exit code as a shell would."""
    chance = random.Random(seed)
    guard, program = guard_pipe(), subprocess.Popen(command)
    try:
        while program.poll() is None:
            stall(program, guard, chance, most_s, verbose)
            with suppress(subprocess.TimeoutExpired):
                program.wait(chance.expovariate(1 / every_s))
    except KeyboardInterrupt:
        pass  # the terminal has told the command as well
    except SystemExit:
        program.terminate()
    while True:
        with suppress(KeyboardInterrupt, SystemExit):
            code = program.wait()
            return code if code >= 0 else 128 - code


def stall(program: subprocess.Popen, guard: int, chance: random.Random, most_s: float, verbose: bool) -> None:
    """Stop some of the command's processes and, after a while, continue them."""
    seconds = min(most_s, chance.uniform(2, 5) if chance.random() < 0.1 else chance.uniform(0.05, 1))
    stopped = pick(levels(psutil.Process(program.pid)), chance)
    os.write(guard, (" ".join(str(each.pid) for each in stopped) + "\n").encode())
    try:
        for each in stopped:
            with suppress(psutil.Error):
                each.suspend()
        if verbose:
            names = [f"{each.pid} {name_of(each)}" for each in stopped]
            print(f"\nstalls: {seconds:.2f} s: {', '.join(names)}", file=sys.stderr, flush=True)
        time.sleep(seconds)
    finally:
        for each in stopped:
            with suppress(psutil.Error):
                each.resume()


def levels(root: psutil.Process) -> list[list[psutil.Process]]:
    """The running processes at each depth, the command's own first."""
    depths, levels = {root.pid: 0}, [[root]]
    for each in root.children(recursive=True):  # parents first
        with suppress(psutil.Error):
            depth = depths[each.pid] = depths.get(each.ppid(), 0) + 1
            levels += [[] for _ in range(depth + 1 - len(levels))]
            if each.status() not in HALTED:
                levels[depth].append(each)
    return [level for level in levels if level]


def pick(depths: list[list[psutil.Process]], chance: random.Random) -> list[psutil.Process]:
    """One process, of a depth chosen first, or (one time in ten) all."""
    all_at_once, depth, place = chance.random() < 0.1, chance.random(), chance.random()
    if all_at_once:
        return [each for depth in depths for each in depth]
    level = depths[int(depth * len(depths))]
    return [level[int(place * len(level))]]


def name_of(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())[-80:]
    return "(gone)"


def guard_pipe() -> int:
    """The pipe to a process that continues what was stopped last when this one ends, even by a kill."""
    reading, writing = os.pipe()
    if os.fork():
        os.close(reading)
        return writing
    os.close(writing)
    os.setsid()  # a Ctrl-C is not for it
    last = ""
    for line in os.fdopen(reading):
        last = line
    for pid in last.split():
        with suppress(OSError):
            os.kill(int(pid), signal.SIGCONT)
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most-s", type=float, default=5.0, help="no process is stopped for longer")
    parser.add_argument("--every-s", type=float, default=0.3, help="between two stops, on average")
    parser.add_argument("-v", "--verbose", action="store_true", help="say what is stopped")
    parser.add_argument("command", nargs="+")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(run_with_stalls(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
