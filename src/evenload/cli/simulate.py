"""``evenload simulate``: what would these devices do with those items?"""

import json
import math
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from evenload.balance.fleet import ModelDevice
from evenload.balance.migrate import LoadBalancer
from evenload.balance.policy import policy_from_name
from evenload.balance.scenario import MOST_ITEMS, draw_costs, draw_hints, parse_fleet
from evenload.balance.simulate import Simulation, simulate
from evenload.errors import ConfigError

from .gantt import gantt_lines
from .table import format_table

BALANCED = "static+balancer"
EVERYTHING = ("measured", "pull", "guided", "factoring", "static:proportional", BALANCED, "static")


@click.command("simulate")
@click.option("--devices", default="4", metavar="FLEET", help="5,1x0.5: five devices and one at half speed.")
@click.option("--items", default=270, metavar="N", help="How many items (270).")
@click.option(
    "--cost",
    default="lognormal:1.0",
    metavar="COST",
    help="Seconds an item takes at speed 1, or how they are drawn.",
)
@click.option(
    "--costs", "costs_file", type=click.Path(path_type=Path), help="Read the seconds from a file, one a line."
)
@click.option(
    "--launch", default=0.001, metavar="SECONDS", help="What every chunk costs besides its items (0.001)."
)
@click.option("--policy", "names", multiple=True, metavar="NAME", help="Only this policy; may be repeated.")
@click.option(
    "--hints", type=float, metavar="ERROR", help="Tell the policy the sizes, wrong by up to 0.2 say."
)
@click.option("--seed", default=0, help="Of the drawn costs (0).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def simulate_fleet(
    devices: str,
    items: int,
    cost: str,
    costs_file: Path | None,
    launch: float,
    names: tuple[str, ...],
    hints: float | None,
    seed: int,
    as_json: bool,
) -> int:
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
    if not 0 <= launch < math.inf:
        raise ConfigError(
            f"--launch {launch} is below zero or not finite", hint="give seconds, such as 0.001"
        )
    fleet = parse_fleet(devices, launch_s=launch)
    costs = read_costs(costs_file) if costs_file else draw_costs(cost, items, seed)
    sizes = draw_hints(costs, hints, seed) if hints is not None else None
    chosen = names or EVERYTHING
    for name in chosen:
        policy_from_name("static" if name == BALANCED else name)
    runs = {name: play(name, fleet, costs, sizes) for name in chosen}
    best = min(runs, key=lambda name: runs[name].makespan_s)
    if as_json:
        click.echo(json.dumps(as_object(runs, fleet, costs), allow_nan=False))
    else:
        click.echo("\n".join(page(runs, best, fleet, costs)))
    return 0 if all(not run.n_unfinished for run in runs.values()) else 1


def play(
    name: str, fleet: Sequence[ModelDevice], costs: list[float], hints: list[float] | None
) -> Simulation:
    """One policy by its name; ``static+balancer`` deals up front and moves queued items while it runs."""
    if name == BALANCED:
        return simulate("static:equal", fleet, costs, hints=hints, balancer=LoadBalancer())
    priors = (
        {device.name: max(device.speed, 1e-9) for device in fleet} if name == "static:proportional" else None
    )
    return simulate(name, fleet, costs, hints=hints, priors=priors)


def read_costs(path: Path) -> list[float]:
    """Seconds per item, one a line; blank lines are left out.

    Raises ConfigError naming the line that is not a number of at least 0, or a file that cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    costs: list[float] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            seconds = float(line)
        except ValueError:
            seconds = math.nan
        if not 0 <= seconds < math.inf:
            raise ConfigError(f"{path}:{number}: {line.strip()[:40]!r} is not a number of seconds")
        costs.append(seconds)
    if len(costs) > MOST_ITEMS:
        raise ConfigError(f"{path} has {len(costs)} items", hint=f"at most {MOST_ITEMS} can be simulated")
    return costs


def page(
    runs: dict[str, Simulation], best: str, fleet: Sequence[ModelDevice], costs: Sequence[float]
) -> list[str]:
    """What a person sees: the question, a table of policies, the timeline of the best."""
    bound_s = runs[best].bound_s
    work = math.fsum(costs)
    lines = [
        f"{len(costs)} items, {work:.4g} s of work, on {len(fleet)} devices",
        f"no plan can end before {bound_s:.4g} s" if bound_s < math.inf else "no plan can end at all",
        "",
    ]
    lines += format_table(
        ["policy", "makespan", "x bound", "imbalance", "chunks", "copies", "moves"],
        [row(name, run) for name, run in runs.items()],
        right="makespan imbalance chunks copies moves",
    )
    if runs[best].n_unfinished:
        return [*lines, "", "no policy can finish: every device dies or stops before the work is done"]
    width = min(100, shutil.get_terminal_size((80, 24)).columns)
    picture = gantt_lines(
        slices_of(runs[best], fleet), runs[best].makespan_s, width, ascii_only=not has_blocks()
    )
    return [*lines, "", f"{best}:", *picture] if picture else lines


def row(name: str, run: Simulation) -> list[str]:
    if run.n_unfinished:
        return [name, "never", "–", "–", str(run.counters.n_chunks), "", ""]
    busy = list(run.device2busy_s.values())
    mean = math.fsum(busy) / len(busy)
    times = f"{run.makespan_s / run.bound_s:.3f}" if run.bound_s > 0 else "–"
    counts = (run.counters.n_chunks, run.counters.n_duplicates, run.counters.n_moved)
    return [
        name,
        f"{run.makespan_s:.4g} s",
        times,
        f"{max(busy) / mean if mean else 1:.2f}",
        *map(str, counts),
    ]


def slices_of(run: Simulation, fleet: Sequence[ModelDevice]) -> dict[str, list[tuple[float, float, str]]]:
    rows: dict[str, list[tuple[float, float, str]]] = {}
    for device in fleet:
        speed = (
            f"{device.speed:g}x"
            + ("~" if device.profile else "")
            + ("!" if device.dies_s is not None else "")
        )
        kinds = [
            (
                span.start_s,
                span.stop_s,
                "lost" if span.status == "lost" else "copy" if span.duplicate else "work",
            )
            for span in run.spans
            if span.device == device.name
        ]
        rows[f"{device.name} {speed}"] = kinds
    return rows


def has_blocks() -> bool:
    """Can this terminal show block letters?"""
    try:
        "█▓▒·".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def as_object(
    runs: dict[str, Simulation], fleet: Sequence[ModelDevice], costs: Sequence[float]
) -> dict[str, Any]:
    """The JSON page: seconds, ratios and counts per policy; a makespan of null was never reached."""
    policies = {
        name: {
            "makespan_s": run.makespan_s if not run.n_unfinished else None,
            "bound_s": run.bound_s if run.bound_s < math.inf else None,
            "ratio_to_bound": run.makespan_s / run.bound_s
            if not run.n_unfinished and run.bound_s > 0
            else None,
            "unfinished": run.n_unfinished,
            "chunks": run.counters.n_chunks,
            "duplicates": run.counters.n_duplicates,
            "moves": run.counters.n_moved,
            "busy_s": dict(run.device2busy_s),
        }
        for name, run in runs.items()
    }
    speeds = {device.name: device.speed for device in fleet}
    return {
        "schema": 1,
        "items": len(costs),
        "work_s": math.fsum(costs),
        "devices": speeds,
        "policies": policies,
    }
