"""``evenload simulate``: what would these devices do with those items?"""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import click

from evenload.balance.fleet import ModelDevice
from evenload.balance.migrate import LoadBalancer
from evenload.balance.policy import policy_from_name
from evenload.balance.scenario import MOST_ITEMS, draw_costs, draw_hints, parse_fleet
from evenload.balance.simulate import Simulation, simulate
from evenload.cli.simulated import Outcome, as_object, page
from evenload.errors import ConfigError

BALANCED = "static+balancer"
ITEMS_IN_ALL = 30_000  # as many draws as keep the answer within a second or two
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
@click.option(
    "--draws", type=int, metavar="N", help="Mean of N draws of the costs (10; fewer if there are many items)."
)
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
    draws: int | None,
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
    chosen = names or EVERYTHING
    for name in chosen:
        policy_from_name("static" if name == BALANCED else name)
    if costs_file is not None:
        all_costs = [read_costs(costs_file)]
    else:
        n_draws = n_draws_of(cost, items, draws)
        all_costs = [draw_costs(cost, items, seed + at) for at in range(n_draws)]
    sizes = [
        None if hints is None else draw_hints(costs, hints, seed + at) for at, costs in enumerate(all_costs)
    ]
    outcomes = {
        name: Outcome([play(name, fleet, costs, size) for costs, size in zip(all_costs, sizes, strict=True)])
        for name in chosen
    }
    work_s = math.fsum(map(math.fsum, all_costs)) / len(all_costs)
    if as_json:
        click.echo(json.dumps(as_object(outcomes, fleet, len(all_costs[0]), work_s), allow_nan=False))
    else:
        click.echo("\n".join(page(outcomes, fleet, len(all_costs[0]), work_s)))
    return 1 if any(outcome.n_unfinished for outcome in outcomes.values()) else 0


def n_draws_of(cost: str, n_items: int, asked: int | None) -> int:
    """How often to draw the costs: one draw of uneven items is mostly luck. Costs that are equal need one."""
    if asked is not None:
        if not 1 <= asked <= 1000:
            raise ConfigError(f"--draws {asked} is not in 1..1000", hint="use 10")
        return asked
    if cost.partition(":")[1] == "":
        return 1
    return max(1, min(10, ITEMS_IN_ALL // max(1, n_items)))


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
