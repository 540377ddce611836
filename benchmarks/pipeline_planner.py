"""How near the least possible time plans come, on modelled fleets, beside what others do with the same job.

    python benchmarks/pipeline_planner.py [--draws 8]
    python benchmarks/pipeline_planner.py --large

With --large: five stages on fleets of four kinds with unequal memory, 10,000 items on 64 devices and 100,000
on 512; also with speeds that differ by up to 10 % within a kind (scattered), and with stages that must be
held whole, so that two of them fit on some kinds only (whole); CPU seconds and most memory of the planner.

Times of the cases: edits per second as the job's author gave them, 50 steps (17.8 s on an H200, vllm-omni
#3684), 40 steps with guidance, an 8-step distillation, and three stages; loads of 15 to 30 s. Fleets: 6 equal
devices, one of them at half speed, 16 at speeds 1, 1/2 and 1/4, and random ones of 2 to 16 at 1/4 to 1.

    round-robin     a replica of every stage on each device, item i on device i mod N; both models resident
    barrier         the recipe of accelerate: an item on each device, wait for all, then the next; then scores
    fixed pools     each stage has its own devices from start to end, the split chosen best: what a streaming
                    executor such as Ray Data can express, whose pools never give a device to the next stage
"""

import argparse
import itertools
import math
import random
import resource
import time
from collections.abc import Sequence
from dataclasses import replace

from record import record

from evenload.errors import ConfigError
from evenload.pipeline.planning.planner import make_plan
from evenload.pipeline.problem import PlanDevice, PlanStage, Problem, Weights

CASES = {
    "as given: edit 5.0, score 3.4": [(5.0, 20), (3.4, 15)],
    "50 steps: 17.8, 1.0": [(17.8, 30), (1.0, 15)],
    "40 steps, guided: 28.5, 3.4": [(28.5, 30), (3.4, 15)],
    "8 steps: 2.9, 1.0": [(2.9, 30), (1.0, 15)],
    "three stages: 0.11, 17.8, 1.0": [(0.11, 15), (17.8, 30), (1.0, 15)],
}
FLEETS = {
    "6 equal": [1.0] * 6,
    "5 + one at half": [1.0] * 5 + [0.5],
    "16: 8, 4 at 1/2, 4 at 1/4": [1.0] * 8 + [0.5] * 4 + [0.25] * 4,
}
COUNTS = (50, 100, 250)


GIB = 2**30
KINDS = [(1.0, 76), (0.6, 44), (0.35, 22), (0.5, 70)]  # speed, GiB
LARGE_STAGES = (
    PlanStage("encode", 0.3, 15.0, Weights(15 * GIB), GIB),
    PlanStage("denoise", 17.8, 30.0, Weights(GIB // 4, int(0.633 * GIB), 60), int(2.5 * GIB), GIB // 16, 50),
    PlanStage("decode", 0.6, 5.0, Weights(GIB), 3 * GIB),
    PlanStage("score", 1.0, 15.0, Weights(15 * GIB), GIB),
    PlanStage("finish", 3.4, 20.0, Weights(GIB // 2, GIB // 2, 48), GIB, GIB // 50, 20),
)


def large_problem(how: str, n_items: int, n_devices: int) -> Problem:
    """Return a job of five stages; ``how``: kinds | scattered (speeds) | whole (none split or streamed)."""
    draw = random.Random(0)
    devices = []
    for n in range(n_devices):
        speed, gib = KINDS[n * len(KINDS) // n_devices]
        scattered = round(speed * draw.uniform(0.9, 1.1), 3) if how == "scattered" else speed
        devices.append(PlanDevice(f"d{n}", scattered, gib * GIB))
    fits = {"fits": ("whole",)} if how == "whole" else {}
    stages = tuple(replace(stage, **fits) for stage in LARGE_STAGES)
    return Problem(stages, tuple(devices), n_items, context_bytes=int(0.6 * GIB))


def measure_large(how: str, n_items: int, n_devices: int) -> dict:
    problem = large_problem(how, n_items, n_devices)
    start = time.process_time()
    plan = make_plan(problem)
    cpu_s = time.process_time() - start
    return {
        "case": how,
        "items": n_items,
        "devices": n_devices,
        "bound_s": plan.bound_s,
        "makespan_s": plan.makespan_s,
        "ratio": plan.ratio,
        "how": plan.candidates[0].label,
        "plan_cpu_s": cpu_s,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def problem_of(stages: Sequence[tuple[float, float]], speeds: Sequence[float], n_items: int) -> Problem:
    return Problem(
        tuple(
            PlanStage(f"s{n}", item_s, load_s, fits=("whole",)) for n, (item_s, load_s) in enumerate(stages)
        ),
        tuple(PlanDevice(f"d{n}", speed) for n, speed in enumerate(speeds)),
        n_items,
    )


def round_robin(problem: Problem) -> float:
    """Every device: all loads, then its items through all stages."""
    loads = sum(stage.load_s for stage in problem.stages)
    item_s = sum(stage.item_s for stage in problem.stages)
    n_devices = len(problem.devices)
    return max(
        loads + len(range(at, problem.n_items, n_devices)) * item_s / device.speed
        for at, device in enumerate(problem.devices)
    )


def barrier(problem: Problem) -> float:
    """Stage after stage; in each, rounds of one item on each device that end with the slowest."""
    slowest = min(device.speed for device in problem.devices)
    rounds = math.ceil(problem.n_items / len(problem.devices))
    return sum(stage.load_s + rounds * stage.item_s / slowest for stage in problem.stages)


def fixed_pools(problem: Problem) -> float | None:
    try:
        return make_plan(problem, "stage_parallel").makespan_s
    except ConfigError:
        return None


def fleets(n_draws: int) -> dict[str, list[float]]:
    draw = random.Random(0)
    drawn = {
        f"random {n}": sorted(
            (round(draw.uniform(0.25, 1.0), 2) for _ in range(draw.randint(2, 16))), reverse=True
        )
        for n in range(n_draws)
    }
    return {**FLEETS, **drawn}


def measure(name: str, fleet: str, speeds: Sequence[float], n_items: int) -> dict:
    problem = problem_of(CASES[name], speeds, n_items)
    start = time.process_time()
    plan = make_plan(problem)
    cpu_s = time.process_time() - start
    assert plan.bound_s is not None
    assert plan.makespan_s is not None
    pools = fixed_pools(problem)
    return {
        "case": name,
        "fleet": fleet,
        "speeds": list(speeds),
        "items": n_items,
        "bound_s": plan.bound_s,
        "makespan_s": plan.makespan_s,
        "ratio": plan.makespan_s / plan.bound_s,
        "mode": plan.mode,
        "how": plan.candidates[0].label,
        "round_robin": round_robin(problem) / plan.bound_s,
        "barrier": barrier(problem) / plan.bound_s,
        "fixed_pools": pools / plan.bound_s if pools is not None else None,
        "plan_cpu_s": cpu_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=8, help="random fleets")
    parser.add_argument("--large", action="store_true", help="large jobs alone")
    options = parser.parse_args()
    if options.large:
        large = itertools.product(("kinds", "scattered", "whole"), ((10_000, 64), (100_000, 512)))
        record("pipeline_planner_large", [measure_large(how, *sizes) for how, sizes in large])
        return
    chosen = fleets(options.draws)
    rows = [
        measure(name, fleet, chosen[fleet], n_items)
        for name, fleet, n_items in itertools.product(CASES, chosen, COUNTS)
    ]
    print(f"planning: at most {max(row.pop('plan_cpu_s') for row in rows):.1f} CPU seconds")
    record("pipeline_planner", rows, is_of_speed=False, draws=options.draws)


if __name__ == "__main__":
    main()
