"""A small coverage-guided fuzzer for the parsers: inputs that reach new lines are kept and changed further.

python tests/zk/formats/fuzzer.py [seconds] [seed]
"""

import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

INTERESTING = [
    0,
    1,
    2,
    3,
    4,
    7,
    31,
    32,
    33,
    64,
    127,
    128,
    255,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFF0,
    0xFFFFFFFF,
    1 << 27,
]


class Coverage:
    """The set of (file, line before, line) steps in modules whose path contains ``part``."""

    def __init__(self, part: str):
        self.part, self.steps = part, set()

    def _enter(self, frame, event, argument):
        if self.part not in frame.f_code.co_filename:
            return None
        name, last = frame.f_code.co_filename, [0]

        def step(frame, event, argument):
            if event == "line":
                self.steps.add((name, last[0], frame.f_lineno))
                last[0] = frame.f_lineno
            return step

        return step

    def of(self, call: Callable[[], object]) -> set:
        self.steps, old = set(), sys.gettrace()
        sys.settrace(self._enter)
        try:
            call()
        finally:
            sys.settrace(old)
        return self.steps


def mutate(content: bytes, others: list[bytes], dice: random.Random) -> bytes:
    """One to four of: bits, small numbers in place of words, parts cut, doubled, or taken from another
    input."""
    out = bytearray(content)
    for _ in range(dice.randint(1, 4)):
        if not out:
            break
        at, kind = dice.randrange(len(out)), dice.randrange(6)
        if kind == 0:
            out[at] ^= 1 << dice.randrange(8)
        elif kind == 1:
            at &= ~3
            out[at : at + 4] = dice.choice(INTERESTING).to_bytes(4, "little")
        elif kind == 2:
            out[at : at + 8] = (2**64 - dice.choice(INTERESTING) - 1).to_bytes(8, "little")
        elif kind == 3:
            del out[at : at + dice.choice([1, 4, 12, 32, 64])]
        elif kind == 4:
            out[at:at] = out[at : at + dice.choice([1, 12, 32, 64])]
        else:
            other = dice.choice(others)
            out[at : at + 64] = other[at : at + 64]
    return bytes(out)


def fuzz(
    read: Callable[[bytes], object],
    seeds: list[bytes],
    allowed: type[Exception],
    dice: random.Random,
    should_stop: Callable[[int], bool],
) -> tuple[int, int]:
    """(runs, inputs kept). Any exception but ``allowed`` is raised with the input as a note."""
    coverage, corpus, seen, runs = Coverage("evenload/zk/formats"), [], set(), 0

    def attempt(content: bytes) -> None:
        try:
            read(content)
        except allowed:
            return
        except BaseException as error:
            error.add_note(f"input: {content.hex()}")
            raise

    queue = list(seeds)
    while not should_stop(runs):
        content = queue.pop() if queue else mutate(dice.choice(corpus), corpus, dice)
        reached = coverage.of(lambda content=content: attempt(content))
        if not reached <= seen:
            seen |= reached
            corpus.append(content)
        runs += 1
    return runs, len(corpus)


def main() -> None:
    from evenload.errors import FormatError
    from evenload.zk import read_witness, read_zkey
    from evenload.zk.formats.r1cs import read_r1cs

    seconds, seed = (
        float(sys.argv[1]) if len(sys.argv) > 1 else 60.0,
        int(sys.argv[2]) if len(sys.argv) > 2 else 0,
    )
    data = Path(__file__).parents[2] / "data" / "zk"
    readers = {"circuit.zkey": read_zkey, "witness.wtns": read_witness, "multiplier.r1cs": read_r1cs}
    for file, read in readers.items():
        stop = time.monotonic() + seconds / len(readers)
        seeds = [(data / "multiplier" / file).read_bytes()]
        runs, kept = fuzz(
            read, seeds, FormatError, random.Random(seed), lambda _, stop=stop: time.monotonic() > stop
        )
        sys.stdout.write(f"{file}: {runs} inputs, {kept} reached something new, none crashed\n")


if __name__ == "__main__":
    main()
