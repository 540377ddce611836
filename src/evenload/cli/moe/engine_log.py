"""What engines write of their experts' loads into their logs: one number for all experts of a step.

vLLM with ``log_balancedness``: the mean over ranks of a step's tokens over their maximum, both summed over
layers. SGLang with ``--enable-expert-distribution-metrics``: the mean over layers of that ratio. No placement
gets it above 1, so 1 less it is the share of the experts' time that balance could save at most. How near a
placement comes, and which experts it moves, takes counts of each expert.
"""

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

from evenload._private_files import open_plain

PIECE_BYTES = 1 << 22  # that one look reads
MOST_LINE = 1 << 16
NUMBER = r"([0-9]{1,12}(?:\.[0-9]{1,12})?)"
VLLM = re.compile(
    rf"EPLB step: (?:([0-9]{{1,12}}) for model (.{{1,400}}?): )?avg_tokens={NUMBER}, max_tokens={NUMBER}, bal"
)
SGLANG = re.compile(
    rf"\[Expert Balancedness\] forward_pass_id=([0-9]{{1,18}}) current_pass_balancedness={NUMBER} "
    rf".{{0,400}}gpu_physical_count_sum={NUMBER}"
)


@dataclass(frozen=True, slots=True)
class BalanceLine:
    """One step as an engine logged it.

    engine        "vllm" or "sglang"
    model         that the line names, None if none
    step          the engine's number of it, None if it gives none
    balancedness  mean rank over busiest rank, above 0 up to 1
    tokens        of the mean rank (vLLM) or of all (SGLang): how much the step weighs
    """

    engine: str
    model: str | None
    step: int | None
    balancedness: float
    tokens: float


def balance_of(line: str) -> BalanceLine | None:
    """The step that a log line tells of; None for any other line, and for a step without tokens."""
    if found := VLLM.search(line):
        step, model, mean, most = found.groups()
        engine, tokens, ratio = "vllm", float(mean), float(mean) / (float(most) or math.inf)
    elif found := SGLANG.search(line):
        step, model = found[1], None
        engine, tokens, ratio = "sglang", float(found[3]), float(found[2])
    else:
        return None
    if not (tokens > 0 and 0 < ratio <= 1.01):  # vLLM rounds the mean alone
        return None
    return BalanceLine(engine, model, None if step is None else int(step), min(ratio, 1.0), tokens)


class LogFollower:
    """A reader of a log that grows: ``read`` gives the steps that were logged since the last call.

    ``is_behind``: there is more to read at once. A line without its end waits for the rest; a log that is
    replaced or cut is read from its start again.
    """

    is_behind = False

    def __init__(self, path: Path):
        self._path, self._offset, self._rest, self._file = path, 0, b"", (0, 0)

    def read(self) -> list[BalanceLine]:
        """Raises OSError if there is no such file, and ConfigError if it is none that can be read."""
        with open(open_plain(self._path), "rb") as file:
            facts = os.fstat(file.fileno())
            if (facts.st_dev, facts.st_ino) != self._file or facts.st_size < self._offset:
                self._offset, self._rest, self._file = 0, b"", (facts.st_dev, facts.st_ino)
            file.seek(self._offset)
            piece = file.read(PIECE_BYTES)
        self._offset += len(piece)
        self.is_behind = self._offset < facts.st_size
        *lines, self._rest = (self._rest + piece).split(b"\n")
        self._rest = self._rest[:MOST_LINE]
        steps = (balance_of(line[:MOST_LINE].decode("utf-8", "replace")) for line in lines)
        return [step for step in steps if step is not None]
