"""Every policy on modelled devices: efficiency (bound over makespan), mean and worst of many draws.

    python benchmarks/schedule_simulation.py [--draws 40] [--workloads big,mid] [--policies measured "pull 1"]

Four devices of speeds 1 : 2 : 4 : 8 in random order, 60 seconds of work in all, a launch of 1 ms per chunk.

    big         60 items, lognormal (sigma 1)
    mid         300 items, lognormal (sigma 1)
    tiny        100 000 equal items
    launch      4096 equal items, a launch is 10 ms
    ... drift   the fastest device slows 4x half-way
    ... stall   it all but stops half-way
    ... jitter  every device's speed is redrawn every 250 ms
    ... sorted  costs increase

A second table is of fleets as they are bought: equal devices, or two generations of them, with lognormal
items of sigma 0.3 (images of one model) and 1.0 (prompts), four seconds of work for each device.

A third table is of sizes that are learned: *big*, and 60 items on 8 equal devices, whose costs go by one of
their features but for some noise, or by none; what was learned then orders other items (a later program).
`--learned` makes this table alone.

No policy is told the costs; those that need speeds up front are told what their name says: the true speeds,
or a score as a data sheet would give it (1 : 1.2 : 1.6 : 2.2).
"""

import argparse
import heapq
import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from record import print_table, record

from evenload.balance.fleet import ModelDevice, draw_hints, fluid_bound
from evenload.balance.migrate import LoadBalancer
from evenload.balance.policy import Factoring, Guided, Measured, Policy, Pull, Static
from evenload.balance.simulate import simulate
from evenload.balance.sizes.size_learner import SizeLearner

SPEEDS = (1.0, 2.0, 4.0, 8.0)
SCORES = (1.0, 1.2, 1.6, 2.2)
SPAN_S = 4.0
WORKLOADS = (
    "big", "big drift", "mid", "mid drift", "mid jitter", "mid stall", "mid sorted",
    "tiny", "tiny drift", "launch", "launch drift",
)  # fmt: skip


FLEETS = {
    "4 equal": (1.0,) * 4,
    "8 equal": (1.0,) * 8,
    "5 and 1 at half": (1.0,) * 5 + (0.5,),
    "4 and 4 at half": (1.0,) * 4 + (0.5,) * 4,
}
ITEMS = ((60, 0.3), (60, 1.0), (300, 0.3), (300, 1.0))


@dataclass(frozen=True)
class Contender:
    """A policy, what it is told, and whether that is something a first run can know."""

    policy: Policy | None  # None: steal_half below
    told: str = "nothing"  # nothing | speeds | score | sizes
    balancer: Callable[[], LoadBalancer] | None = None
    is_causal: bool = True


CONTENDERS = {
    "static, equal": Contender(Static("equal", chunk=None)),
    "static, score": Contender(Static("proportional", chunk=None), "score"),
    "static, true speeds": Contender(Static("proportional", chunk=None), "speeds", is_causal=False),
    "static, score + LoadBalancer": Contender(Static("proportional"), "score", LoadBalancer),
    "pull 1": Contender(Pull(1)),
    "pull 16": Contender(Pull(16)),
    "guided": Contender(Guided()),
    "factoring": Contender(Factoring()),
    "factoring, weighted": Contender(Factoring(weighted=True)),
    "steal half": Contender(None),
    "measured": Contender(Measured()),
    "measured, sizes within 20 %": Contender(Measured(), "sizes", is_causal=False),
}


def draw(workload: str, seed: int) -> tuple[list[float], list[ModelDevice], dict[str, float]]:
    """Costs, devices and the score of each device."""
    chance = random.Random(1000 * seed + 7)
    total = SPAN_S * sum(SPEEDS)
    kind = workload.split()[0]
    if kind in ("big", "mid"):
        costs = [chance.lognormvariate(0, 1) for _ in range({"big": 60, "mid": 300}[kind])]
    else:
        costs = [1.0] * {"tiny": 100_000, "launch": 4096}[kind]
    scale = total / sum(costs)
    costs = [cost * scale for cost in costs]
    profiles: list[tuple[tuple[float, float], ...]] = [()] * len(SPEEDS)
    if "drift" in workload:
        profiles[-1] = ((SPAN_S / 2, SPEEDS[-1] / 4),)
    if "stall" in workload:
        profiles[-1] = ((SPAN_S / 2, SPEEDS[-1] / 400),)
    if "jitter" in workload:
        steps = [k * 0.25 for k in range(1, 400)]
        profiles = [tuple((t, s * chance.choice([0.3, 1, 1, 1.4])) for t in steps) for s in SPEEDS]
    if "sorted" in workload:
        costs.sort()
    launch_s = 0.010 if kind == "launch" else 0.001
    order = list(range(len(SPEEDS)))
    chance.shuffle(order)
    devices = [ModelDevice(f"d{at}", SPEEDS[at], profiles[at], launch_s) for at in order]
    return costs, devices, {f"d{at}": SCORES[at] for at in order}


def steal_half(devices: list[ModelDevice], costs: list[float]) -> float:
    """Makespan if each device works through an equal share, then takes half of the longest queue left.

    What work-stealing runtimes do; stealing itself costs nothing here.
    """
    n, n_devices = len(costs), len(devices)
    queues = [range(n * at // n_devices, n * (at + 1) // n_devices) for at in range(n_devices)]
    free = [(0.0, at) for at in range(n_devices)]
    makespan_s = 0.0
    while free:
        now, at = heapq.heappop(free)
        if not queues[at]:
            victim = max(range(n_devices), key=lambda d: len(queues[d]))
            cut = len(queues[victim]) // 2
            queues[at], queues[victim] = queues[victim][cut:], queues[victim][:cut]
        if queues[at]:
            end_s = devices[at].finish(now + devices[at].launch_s, costs[queues[at][0]])
            queues[at] = queues[at][1:]
            makespan_s = max(makespan_s, end_s)
            heapq.heappush(free, (end_s, at))
    return makespan_s


def draw_fleet(
    fleet: str, n_items: int, sigma: float, seed: int
) -> tuple[list[float], list[ModelDevice], dict[str, float]]:
    chance = random.Random(1000 * seed + 7)
    costs = [chance.lognormvariate(0, sigma) for _ in range(n_items)]
    scale = SPAN_S * sum(FLEETS[fleet]) / sum(costs)
    devices = [ModelDevice(f"d{at}", speed, (), 0.001) for at, speed in enumerate(FLEETS[fleet])]
    return [cost * scale for cost in costs], devices, {device.name: 1.0 for device in devices}


def efficiency(
    contender: Contender, drawn: tuple[list[float], list[ModelDevice], dict[str, float]], seed: int
) -> float:
    costs, devices, scores = drawn
    if contender.policy is None:
        bound_s = max(fluid_bound(devices, sum(costs)), min(d.finish(0.0, max(costs)) for d in devices))
        return bound_s / steal_half(devices, costs)
    priors = {device.name: device.speed for device in devices} if contender.told == "speeds" else None
    return simulate(
        contender.policy,
        devices,
        costs,
        hints=draw_hints(costs, 0.2, seed) if contender.told == "sizes" else None,
        priors=scores if contender.told == "score" else priors,
        balancer=contender.balancer() if contender.balancer else None,
    ).ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--policies", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--learned", action="store_true", help="only what learned sizes bring")
    options = parser.parse_args()
    facts = {"is_of_speed": False, "draws": options.draws}
    if options.learned:
        record("schedule_simulation_learned", list(learned_rows(options.draws)), **facts)
        return
    workloads = options.workloads.split(",")
    rows = [policy_row(name, workloads, options.draws) for name in options.policies]
    if len(rows) < len(CONTENDERS) or workloads != list(WORKLOADS):
        print_table(rows)
        return
    fleets = list(fleet_rows(options.draws))
    print_table(fleets)
    record("schedule_simulation", rows, fleets=fleets, **facts)


def policy_row(name: str, workloads: list[str], draws: int) -> dict[str, object]:
    row: dict[str, object] = {"policy": name, "told": CONTENDERS[name].told}
    for workload in workloads:
        # Equal items leave little to chance: a few draws of the device order tell all.
        n_draws = draws if workload.split()[0] in ("big", "mid") else min(4, draws)
        reached = [efficiency(CONTENDERS[name], draw(workload, seed), seed) for seed in range(n_draws)]
        row |= {workload: round(statistics.mean(reached), 4), f"{workload} worst": round(min(reached), 4)}
    return row


def fleet_rows(draws: int) -> Iterator[dict[str, object]]:
    for name in ("static, equal", "pull 1", "guided", "factoring, weighted", "steal half", "measured"):
        row: dict[str, object] = {"policy": name}
        for fleet in FLEETS:
            for n_items, sigma in ITEMS:
                reached = [
                    efficiency(CONTENDERS[name], draw_fleet(fleet, n_items, sigma, seed), seed)
                    for seed in range(draws)
                ]
                row[f"{fleet}: {n_items}, {sigma}"] = round(statistics.mean(reached), 4)
        yield row


def features_of(costs: list[float], noise: float | None, seed: int) -> list[dict[str, float]]:
    """Items whose length tells their cost within ``noise``, or nothing (None); two features never do."""
    chance = random.Random(seed + 77)
    if noise is None:
        lengths = [chance.lognormvariate(0, 1) for _ in costs]
    else:
        lengths = draw_hints(costs, noise, seed)
    return [
        {
            "length": float(int(1000 * length)),
            "steps": chance.choice([10.0, 20.0, 30.0]),
            "position": float(at),
        }
        for at, length in enumerate(lengths)
    ]


def learned_rows(draws: int) -> Iterator[dict[str, object]]:
    for workload in ("big", "8 equal: 60, 1.0"):
        for noise in (0.0, 0.2, 0.5, None):
            reached: dict[str, list[float]] = {
                name: [] for name in ("in order", "first", "later in order", "later")
            }
            for seed in range(draws):
                law = None
                for program, at in (("", seed), ("later", seed + 1000)):
                    costs, devices, _ = (
                        draw("big", at) if workload == "big" else draw_fleet("8 equal", 60, 1.0, at)
                    )
                    learner = SizeLearner(law)
                    features = features_of(costs, noise, at)
                    plain = simulate(Measured(), devices, costs).ratio
                    learned = simulate(Measured(), devices, costs, features=features, learner=learner).ratio
                    reached[f"{program} in order".strip()].append(plain)
                    reached[program or "first"].append(learned)
                    law = learner.model
            row: dict[str, object] = {"workload": workload, "noise": "no feature" if noise is None else noise}
            yield row | {name: round(statistics.mean(ratios), 4) for name, ratios in reached.items()}


if __name__ == "__main__":
    main()
