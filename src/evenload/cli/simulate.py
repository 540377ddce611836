"""``evenload simulate``: what would these devices do with those items?"""

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import click

from evenload._plain_text import number_text, seconds_text
from evenload._private_files import text_named
from evenload.balance.fleet import MOST_COST_S, MOST_ITEMS, ModelDevice, draw_costs, draw_hints, parse_fleet
from evenload.balance.metrics import imbalance
from evenload.balance.migrate import LoadBalancer
from evenload.balance.policy import policy_from_name
from evenload.balance.simulate import Simulation, simulate
from evenload.cli.options import PATH, json_option, option, page_json, passed_as, shared
from evenload.cli.terminal.table import format_table
from evenload.cli.terminal.text_charts import gantt_lines, has_blocks
from evenload.errors import ConfigError, quoted

BALANCED = "static+balancer"
MOST_BYTES = 32 * MOST_ITEMS  # a line each
ITEMS_IN_ALL = 30_000  # as many draws as keep the answer within a second or two
EVERYTHING = ("measured", "pull", "guided", "factoring", "static:proportional", BALANCED, "static")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateRequest:
    """The options of ``evenload simulate``."""

    devices: str = option(
        "--devices", default="4", metavar="FLEET", help="5,1x0.5: five devices and one at half speed."
    )
    items: int = option("--items", default=270, metavar="N", help="How many items (270).")
    cost: str = option(
        "--cost",
        default="lognormal:1.0",
        metavar="COST",
        help="Seconds an item takes at speed 1, or how they are drawn.",
    )
    costs_file: Path | None = option("--costs", type=PATH, help="Read the seconds from a file, one a line.")
    launch: float = option(
        "--launch", default=0.001, metavar="SECONDS", help="What every chunk costs besides its items (0.001)."
    )
    names: tuple[str, ...] = option(
        "--policy", multiple=True, metavar="NAME", help="Only this policy; may be repeated."
    )
    hints: float | None = option(
        "--hints",
        type=float,
        metavar="ERROR",
        help="Tell the policy the sizes, with an error of up to this, such as 0.2.",
    )
    seed: int = option("--seed", default=0, help="Seed for drawing the costs (0).")
    draws: int | None = option(
        "--draws",
        type=int,
        metavar="N",
        help="Mean of N draws of the costs (10; fewer if there are many items).",
    )
    as_json: bool = shared(json_option)

    def fleet(self) -> list[ModelDevice]:
        """The modelled devices. Raises ConfigError for what is no fleet, or a launch time below zero."""
        if not 0 <= self.launch < math.inf:
            raise ConfigError(
                f"--launch {self.launch} is below zero or not finite", hint="give seconds, such as 0.001"
            )
        return parse_fleet(self.devices, launch_s=self.launch)

    def policies(self) -> Sequence[str]:
        """Names of the policies to compare. Raises UnknownName, ConfigError."""
        chosen = self.names or EVERYTHING
        for name in chosen:
            policy_from_name("static" if name == BALANCED else name)
        return chosen

    def drawn_costs(self) -> list[list[float]]:
        """Seconds of every item, for each draw."""
        if self.costs_file is not None:
            return [read_costs(self.costs_file)]
        return [draw_costs(self.cost, self.items, self.seed + at) for at in range(self.n_draws())]

    def n_draws(self) -> int:
        """How often to draw the costs: one draw of uneven items is mostly luck, equal costs need one."""
        if self.draws is not None:
            if not 1 <= self.draws <= 1000:
                raise ConfigError(f"--draws {self.draws} is not in 1..1000", hint="use 10")
            return self.draws
        if self.cost.partition(":")[1] == "":
            return 1
        return max(1, min(10, ITEMS_IN_ALL // max(1, self.items)))


@click.command("simulate")
@passed_as(SimulateRequest)
def simulate_fleet(request: SimulateRequest) -> int:
    """Ask what a fleet of devices would do with your items.

    Runs the very code that deals work in a real run, against modelled devices.

    \b
    FLEET   5,1x0.5          five devices, and one at half speed
            1x8@2:4          speed 8, which falls to 4 after 2 seconds
            3,1!10           three devices, and one whose worker dies at 10 seconds
    COST    2.5              seconds each, on a device of speed 1
            uniform:1:3      between 1 and 3
            lognormal:1.0:5  spread (sigma) 1.0, mean 5
            exponential:2    mean 2
    """
    fleet, policies = request.fleet(), request.policies()
    draws = request.drawn_costs()
    hints = [
        None if request.hints is None else draw_hints(costs, request.hints, request.seed + at)
        for at, costs in enumerate(draws)
    ]
    results = {
        name: PolicyResult([play(name, fleet, costs, told) for costs, told in zip(draws, hints, strict=True)])
        for name in policies
    }
    work_s, n_items = math.fsum(map(math.fsum, draws)) / len(draws), len(draws[0])
    if request.as_json:
        click.echo(page_json(to_json(results, fleet, n_items, work_s)))
    else:
        click.echo("\n".join(to_lines(results, fleet, n_items, work_s)))
    return 1 if any(result.n_unfinished for result in results.values()) else 0


def play(
    name: str, fleet: Sequence[ModelDevice], costs: list[float], hints: list[float] | None
) -> Simulation:
    """Simulate a policy by its name; ``static+balancer`` deals up front and moves queued items in the run."""
    if name == BALANCED:
        return simulate("static:equal", fleet, costs, hints=hints, balancer=LoadBalancer())
    priors = (
        {device.name: max(device.speed, 1e-9) for device in fleet} if name == "static:proportional" else None
    )
    return simulate(name, fleet, costs, hints=hints, priors=priors)


def read_costs(path: Path) -> list[float]:
    """Read seconds per item, one a line; blank lines are left out.

    Raises ConfigError naming the line that is not a number of at least 0, or a file that cannot be read.
    """
    text = text_named(path, MOST_BYTES, "give a text file with seconds for each item, one a line")
    costs: list[float] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            seconds = float(line)
        except ValueError:
            seconds = math.nan
        if not 0 <= seconds <= MOST_COST_S:
            said = f"{path}:{number}: {quoted(line.strip()[:40])} is not a number of seconds"
            raise ConfigError(said, hint=f"give 0 to {MOST_COST_S:g}, one a line")
        costs.append(seconds)
    if len(costs) > MOST_ITEMS:
        raise ConfigError(f"{path} has {len(costs)} items", hint=f"at most {MOST_ITEMS} can be simulated")
    return costs


@dataclass(frozen=True)
class PolicyResult:
    """One policy's simulated runs, one for each draw of the costs; figures are means over the draws."""

    draws: Sequence[Simulation]

    @property
    def n_unfinished(self) -> int:
        """The most items that a draw left undone."""
        return max(run.n_unfinished for run in self.draws)

    @property
    def makespan_s(self) -> float:
        return fmean(run.makespan_s for run in self.draws)

    @property
    def bound_s(self) -> float:
        return fmean(run.bound_s for run in self.draws)

    @property
    def times_bound(self) -> list[float]:
        """Makespan over bound, draw by draw; empty where there was no work, or it never ended."""
        if self.n_unfinished:
            return []
        return [run.makespan_s / run.bound_s for run in self.draws if run.bound_s > 0]

    @property
    def imbalance(self) -> float:
        return fmean(imbalance(list(run.device2busy_s.values())) for run in self.draws)

    def mean(self, counter: str) -> float:
        return fmean(getattr(run.counters, counter) for run in self.draws)


def to_lines(
    results: Mapping[str, PolicyResult], fleet: Sequence[ModelDevice], n_items: int, work_s: float
) -> list[str]:
    """The page for a person: the question, a table of policies, the timeline of the best."""
    best = min(results, key=lambda name: results[name].makespan_s)
    n_draws, bound_s = len(results[best].draws), results[best].bound_s
    drawn = f", mean of {n_draws} draws" if n_draws > 1 else ""
    can_end = f"before {seconds_text(bound_s, 4)}" if bound_s < math.inf else "at all"
    work = seconds_text(work_s, 4)
    lines = [
        f"{n_items} items, {work} of work, on {len(fleet)} device{'s' * (len(fleet) != 1)}{drawn}",
        f"no plan can end {can_end}",
        "",
        *format_table(
            ["policy", "makespan", "x bound", "worst", "imbalance", "chunks", "copies", "moves"],
            [_row(name, result) for name, result in results.items()],
            right=("makespan", "worst", "imbalance", "chunks", "copies", "moves"),
        ),
        "",
    ]
    if results[best].n_unfinished:
        return [*lines, "no policy can finish: every device dies or stops before the work is done"]
    run = results[best].draws[0]
    width = min(100, shutil.get_terminal_size((80, 24)).columns)
    picture = gantt_lines(_slices(run, fleet), run.makespan_s, width, ascii_only=not has_blocks())
    title = f"{best}, first draw: " if n_draws > 1 else f"{best}: "
    return [*lines, title + _legend(), *picture] if picture else lines[:-1]


def to_json(
    results: Mapping[str, PolicyResult], fleet: Sequence[ModelDevice], n_items: int, work_s: float
) -> dict[str, Any]:
    """The JSON page: means over the draws; a makespan of null was never reached."""
    policies = {}
    for name, result in results.items():
        times, bound_s = result.times_bound, result.bound_s
        busy = [run.device2busy_s for run in result.draws]
        policies[name] = {
            "makespan_s": None if result.n_unfinished else result.makespan_s,
            "bound_s": bound_s if bound_s < math.inf else None,
            "ratio_to_bound": fmean(times) if times else None,
            "worst_ratio_to_bound": max(times) if times else None,
            "unfinished": result.n_unfinished,
            "chunks": result.mean("n_chunks"),
            "duplicates": result.mean("n_duplicates"),
            "moves": result.mean("n_moved"),
            "busy_s": {device.name: fmean(seconds[device.name] for seconds in busy) for device in fleet},
        }
    return {
        "schema": 1,
        "items": n_items,
        "work_s": work_s,
        "draws": max(len(result.draws) for result in results.values()),
        "devices": {device.name: device.speed for device in fleet},
        "policies": policies,
    }


def _row(name: str, result: PolicyResult) -> list[str]:
    if result.n_unfinished:
        return [name, "never", "–", "", "–", f"{result.mean('n_chunks'):.0f}", "", ""]
    times = result.times_bound
    counts = (number_text(result.mean(counter), 4) for counter in ("n_chunks", "n_duplicates", "n_moved"))
    return [
        name,
        f"{seconds_text(result.makespan_s, 4)}",
        f"{fmean(times):.3f}" if times else "–",
        f"{max(times):.3f}" if len(times) > 1 else "",
        f"{result.imbalance:.2f}",
        *counts,
    ]


def _slices(run: Simulation, fleet: Sequence[ModelDevice]) -> dict[str, list[tuple[float, float, str]]]:
    """Rows of the timeline; ~ marks a speed that changes, ! a worker that dies."""
    rows: dict[str, list[tuple[float, float, str]]] = {}
    for device in fleet:
        marks = "~" * bool(device.profile) + "!" * (device.dies_s is not None)
        rows[f"{device.name} {device.speed:g}x{marks}"] = [
            (span.start_s, span.stop_s, _kind(span.status, span.duplicate))
            for span in run.spans
            if span.device == device.name
        ]
    return rows


def _kind(status: str, is_copy: bool) -> str:
    return "lost" if status == "lost" else "copy" if is_copy else "work"


def _legend() -> str:
    work, copy, wait = ("█▓", "▒", "·") if has_blocks() else ("#=", "c", ".")
    return f"{work} chunks in turn, {copy} copy, {wait} waiting, x lost"
