"""``evenload moe watch``: what another placement would save, from what an engine writes while it runs."""

import functools
import math
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evenload._private_files import open_plain
from evenload._terminal import end_with_reader
from evenload.cli.moe.trace_and_fleet import RoutingTrace, check_plan, trace_options
from evenload.cli.options import PATH, NumberRange, json_option, page_json
from evenload.errors import ConfigError, FormatError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


InUse = Callable[[tuple[int, ...]], Any]  # of the layers and experts: the placement in use, and its fleet
LOGS = (".log", ".out", ".err", ".txt")
MOST_BYTES = 1 << 30  # of a trace, which is read whole
MOST_WINDOWS = 64  # that are planned on
LEAST_GAIN = 1e-6  # of max/mean, for which a layer's experts move


@click.command()
@trace_options
@click.option(
    "--gpus", type=click.IntRange(min=1), help="GPUs, where TRACE has counts and there is no --plan."
)
@click.option(
    "--slots", type=click.IntRange(min=1), help="Slots of a layer, likewise.  [default: one an expert]"
)
@click.option(
    "--plan", type=PATH, help="The placement in use.  [default: experts in order, as engines begin]"
)
@click.option("--for", "for_s", type=NumberRange(min=0), metavar="SECONDS", help="Then stop; 0: look once.")
@click.option(
    "--every", type=NumberRange(min=0.1), default=10.0, show_default=True, help="Seconds to a look."
)
@json_option
def watch(
    trace: RoutingTrace, gpus: int | None, slots: int | None, plan: Path | None, for_s: float | None,
    every: float, as_json: bool,
) -> int:  # fmt: skip
    """Follow TRACE while an engine writes it, and say what another placement would save.

    TRACE is a log of vLLM (with log_balancedness) or SGLang (.log, .out, .err or .txt), or a trace of counts
    or ids that grows, such as the folder that SGLang's recorder dumps to.
    """
    end_with_reader()
    is_log, ticks = trace.path.suffix in LOGS, _ticks(for_s, every)
    in_use = functools.partial(_in_use, gpus, slots, plan)
    looks = _looks_at_log(trace.path, ticks) if is_log else _looks_at_trace(trace, in_use, ticks)
    for facts in looks:
        if as_json:
            click.echo(page_json({"schema": 1} | facts))
        else:
            click.echo(_said_of_log(facts) if is_log else _said_of_trace(facts))
    return 0


def _ticks(for_s: float | None, every: float) -> Iterator[bool]:
    """True for the last look; the waits between looks are in between."""
    end = None if for_s is None else time.monotonic() + for_s
    while True:
        left = every if end is None else end - time.monotonic()
        yield left <= 0
        if left <= 0:
            return
        time.sleep(min(left, every))


def _looks_at_log(path: Path, ticks: Iterator[bool]) -> Iterator[dict[str, Any]]:
    follower, n_steps = LogFollower(path), 0
    for is_last in ticks:
        last, n_new, mean, most = None, 0, 0.0, 0.0
        while True:
            for last in follower.read():
                n_new += 1
                mean, most = mean + last.tokens, most + last.tokens / last.balancedness
            if not follower.is_behind:
                break
        if last is not None:
            n_steps += n_new
            yield {
                "source": "log", "engine": last.engine, "model": last.model, "step": last.step,
                "n_steps": n_new, "imbalance": most / mean, "most_saved": 1 - mean / most,
            }  # fmt: skip
        if is_last and not n_steps:
            raise FormatError(
                f"{path.name} has no line on balance",
                hint="vLLM: --eplb-config '{\"log_balancedness\": true}';"
                " SGLang: --enable-expert-distribution-metrics",
            )


def _said_of_log(facts: dict[str, Any]) -> str:
    at = "" if facts["step"] is None else f", up to step {facts['step']}"
    return (
        f"{facts['engine']}: {facts['n_steps']} steps{at}: max/mean {facts['imbalance']:.4f}; no placement"
        f" saves more than {100 * facts['most_saved']:.1f} % of the experts' time (which would, takes counts)"
    )


def _looks_at_trace(trace: RoutingTrace, in_use: InUse, ticks: Iterator[bool]) -> Iterator[dict[str, Any]]:
    path, seen, known, planned, unread = trace.path, 0, None, None, None
    for is_last in ticks:
        state, is_overdue = _state_of(path), is_last and not seen
        if state == known or not (state or is_overdue or not path.is_dir()):
            continue
        try:
            name, windows, _ = trace.windows(512, is_growing=not is_overdue)
        except FormatError:
            if is_overdue or (state == unread and any(n_bytes for _, n_bytes, _ in state)):
                raise
            unread = state  # half-written, perhaps: then it will have grown
            continue
        known = state
        seen = seen if len(windows) >= seen else 0  # written anew
        if len(windows) > seen:
            facts, planned = _look(in_use, windows[seen:][-MOST_WINDOWS:], planned)
            seen = len(windows)
            yield {"source": "trace", "trace": name, "n_windows": seen} | facts


def _state_of(path: Path) -> list[tuple[str, int, int]]:
    """Names, sizes and times of change. Raises ConfigError if there is too much to read."""
    files = [path] if not path.is_dir() else sorted(path.glob("*.pt"))
    facts = [(file.name, file.stat()) for file in files if file.exists()]
    if (total := sum(stat.st_size for _, stat in facts)) > MOST_BYTES:
        raise ConfigError(f"{path.name} has {total} bytes", hint=f"give a trace of at most {MOST_BYTES}")
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in facts]


def _look(
    in_use: InUse, windows: "NDArray[np.int64]", planned: "NDArray[np.int64] | None"
) -> "tuple[dict[str, Any], NDArray[np.int64]]":
    """Figures of new windows: under the placement in use, under the one that was best for those before, and
    under the one that is best for these; and that one.
    """
    import numpy as np

    from evenload.moe.placement.bound import placement_bound, whole_bound
    from evenload.moe.replay.replayer import imbalances
    from evenload.moe.search.plan import place
    from evenload.moe.search.transfers import schedule_transfers

    now, fleet = in_use(windows.shape[1:])

    def of_layers(phy2log: "NDArray[np.int64]") -> "NDArray[np.float64]":
        return imbalances(phy2log, windows, fleet, routed=False).mean(axis=0)

    def mean(phy2log: "NDArray[np.int64]") -> float:
        return float(of_layers(phy2log).mean())

    best = place(windows, fleet, objective="equal", old=now, warns=False).phy2log
    gains = of_layers(best) < of_layers(now) - LEAST_GAIN
    moves = schedule_transfers(now, np.where(gains[:, None], best, now), fleet)
    limits = (fleet.n_living_slots, fleet.n_gpus, fleet.living_speeds())
    bound = [whole_bound(placement_bound(one, *limits), one, limits[2]) for one in windows]
    facts = {
        "n_new": len(windows), "imbalance": mean(now), "best": mean(moves.phy2log),
        "foreseen": None if planned is None else mean(planned), "bound": float(np.mean(bound)),
        "moves": len(moves.transfers), "moved_share": moves.moved_share,
    }  # fmt: skip
    return facts, moves.phy2log


def _in_use(
    gpus: int | None, slots: int | None, plan: Path | None, shape: tuple[int, ...]
) -> "tuple[NDArray[np.int64], Any]":
    """The placement that the engine has, and its fleet."""
    import numpy as np

    from evenload.moe.placement.fleet import Fleet
    from evenload.moe.search.plan_file import read_plan

    n_layers, n_experts = shape
    if plan is not None:
        phy2log, planned_experts, fleet = read_plan(plan)
        check_plan(phy2log, planned_experts, shape)
        return phy2log, fleet
    if gpus is None:
        raise ConfigError("counts of experts, and no GPUs", hint="give --gpus and --slots, or --plan")
    n_slots = slots or n_experts
    fleet = Fleet.even(gpus, n_slots)
    return np.tile(np.arange(n_slots) % n_experts, (n_layers, 1)), fleet


def _said_of_trace(facts: dict[str, Any]) -> str:
    foreseen = "" if facts["foreseen"] is None else f", by the plan before {facts['foreseen']:.4f}"
    return (
        f"{facts['n_new']} new windows: max/mean {facts['imbalance']:.4f}, with another placement"
        f" {facts['best']:.4f}{foreseen} (bound {facts['bound']:.4f}): {facts['moves']} experts to fetch,"
        f" {100 * facts['moved_share']:.1f} % of the slots"
    )


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
