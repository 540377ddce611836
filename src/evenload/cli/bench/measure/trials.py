"""The trials of ``evenload bench`` without kernels: executor, scaling, policies, pipeline, clients."""

import contextlib
import hashlib
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from evenload._optional import is_installed
from evenload.balance.fleet import ModelDevice, draw_costs
from evenload.balance.metrics import utilisation_deviation
from evenload.balance.migrate import LoadBalancer
from evenload.balance.simulate import simulate
from evenload.cli.bench.measure.peers import PEERS, missing_peers
from evenload.cli.bench.measure.timing import least_time
from evenload.cli.bench.measure.trial_report import BenchOptions, TrialReport, compare_with_first, device_row
from evenload.executor import Executor


class HashTask:
    """A task that computes and sends nothing: so many SHA-256 of 64 KiB; on a GPU, products of matrices."""

    def __init__(self, device: object) -> None:
        self.matrix = None
        torch_name = getattr(device, "torch", "cpu")
        if torch_name != "cpu":
            import torch

            self.matrix = torch.ones(2048, 2048, device=torch_name)

    def __call__(self, n: int) -> int:
        if self.matrix is not None:
            import torch

            for _ in range(n):
                torch.mm(self.matrix, self.matrix)
            torch.cuda.synchronize()
            return n
        block = bytes(1 << 16)
        for _ in range(n):
            hashlib.sha256(block).digest()
        return n


def scaling(options: BenchOptions) -> TrialReport:
    """Uneven items, dealt by measured speed, on every selection of devices."""
    n_items = 60 if options.is_quick else 300
    items = [2 + (37 * i) % 17 for i in range(n_items)]
    scale = _scale(0.8 if options.is_quick else 6.0, sum(items))
    items = [scale * item for item in items]
    rows, start_s = [], 0.0
    for spec in options.specs:
        with Executor(spec, echo=False) as executor:
            n = len(executor.devices)
            list(executor.map(HashTask, [1] * n, repeatable=False))
            began = time.perf_counter()
            results = executor.map(HashTask, items)
            list(results)
            wall_s = time.perf_counter() - began
        summary = results.summary
        if summary is None:
            raise AssertionError("a finished run has a summary")
        busy = [share.busy_s for share in summary.devices.values()]
        start_s = start_s or summary.startup_s
        spread, work_s = utilisation_deviation(busy, max(wall_s, *busy)), wall_s - summary.startup_s
        rate = len(items) / wall_s
        rows.append(device_row(spec, n, work_s, summary.ratio_to_bound, spread, items_per_s=rate))
    note = (
        f"{n_items} items of 1 to 9 times the same length; bound: no plan could be faster at the speeds "
        "measured in the same run. A machine that does something else meanwhile is slower on all devices "
        "than on one: the bound sees that, the speed-up suffers from it."
    )
    return TrialReport("scaling", "", compare_with_first(rows, start_s), note)


def _scale(seconds: float, n: int) -> int:
    """How often an item of one does its work, so that ``n`` of them take so many seconds on one core."""
    task = HashTask(None)
    began = time.perf_counter()
    task(50)
    return max(1, round(seconds / n / ((time.perf_counter() - began) / 50)))


SPEEDS = (1.0, 2.0, 4.0, 8.0)
POLICIES = ("measured", "guided", "factoring", "pull", "static:equal+balancer", "static:equal")


def unequal(options: BenchOptions) -> TrialReport:
    """Mean over draws of 300 uneven items; once as it is, once with the fastest device stalling half-way."""
    n_draws = 3 if options.is_quick else 40
    draws = [draw_costs("lognormal:0.5", 300, seed) for seed in range(n_draws)]
    rows = []
    for policy in POLICIES:
        steady = [_play(policy, costs, stalls=False) for costs in draws]
        stalled = [_play(policy, costs, stalls=True) for costs in draws]
        spreads = [utilisation_deviation(list(run.device2busy_s.values()), run.makespan_s) for run in steady]
        rows.append(
            {
                "policy": policy,
                "of_best": fmean(run.ratio for run in steady),
                "worst": min(run.ratio for run in steady),
                "stalled_of_best": fmean(run.ratio for run in stalled),
                "utilisation_std": fmean(spreads),
            }
        )
    note = (
        f"Mean of {n_draws} draws of 300 log-normal items, nothing told beforehand; 1.0 is the best "
        "possible. Stalled: the fastest device stands still from half of the best possible time on."
    )
    return TrialReport("unequal", "", rows, note)


def _play(policy: str, costs: list[float], *, stalls: bool):
    half_s = sum(costs) / sum(SPEEDS) / 2
    profile = ((half_s, 0.0), (20 * half_s, SPEEDS[-1])) if stalls else ()
    devices = [
        ModelDevice(f"{speed:g}x", speed, profile=profile if speed == SPEEDS[-1] else ()) for speed in SPEEDS
    ]
    name, _, balanced = policy.partition("+")
    return simulate(name, devices, costs, balancer=LoadBalancer() if balanced else None)


STAGES = """
import hashlib
import numpy as np

def _work(n):
    block = bytes(1 << 16)
    for _ in range(n):
        hashlib.sha256(block).digest()

class Edit:
    def __call__(self, inputs, item):
        _work({n_edit})
        return {{"size": len(item.id)}}

class Score:
    def __call__(self, inputs, item):
        _work({n_score})
        return {{"score": 1.0}}
"""
JOB = """
version: 1
job: {name: bench, inputs: {jsonl: items.jsonl}}
stages:
  - {name: edit, target: "stages.py:Edit", outputs: {size: number}}
  - {name: score, target: "stages.py:Score", outputs: {score: number}}
report: {html: false, trace: false}
"""


def pipeline(options: BenchOptions) -> TrialReport:
    """Wall time of the whole, the work's time, and the bound, for each selection."""
    from evenload.pipeline import Pipeline

    n_items, n_work = (40, 150) if options.is_quick else (200, 600)
    rows = []
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        (folder / "stages.py").write_text(STAGES.format(n_edit=n_work, n_score=n_work // 3))
        (folder / "items.jsonl").write_text(
            "".join(f'{{"id": "item{i}", "path": "{i}"}}\n' for i in range(n_items))
        )
        (folder / "job.yaml").write_text(JOB)
        for number, spec in enumerate(options.specs):
            began = time.perf_counter()
            result = Pipeline.from_yaml(folder / "job.yaml").run(devices=spec, out=folder / f"run{number}")
            wall_s, summary = time.perf_counter() - began, result.summary
            if result.exit_code:
                raise AssertionError(f"the pipeline ended as {result.status}")
            n, spread = max(1, len(summary.devices)), summary.utilisation_std
            rows.append(device_row(spec, n, summary.work_s, summary.ratio, spread, in_all_s=wall_s))
    note = f"{n_items} items through two stages; in all: with starting workers, plan, journal and results."
    return TrialReport("pipeline", "", compare_with_first(rows), note)


BATCH, STEPS, LR = 16, 5, 0.05


def clients(options: BenchOptions) -> TrialReport:
    """Seconds per round, and how far the fused models are from the serial ones."""
    import torch
    from torch import nn

    from evenload.clients import SGD, Recipe, Trainer

    n_clients = 20 if options.is_quick else 100

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    torch.manual_seed(0)
    data = [
        (torch.randn(BATCH * STEPS, 64), torch.randint(0, 10, (BATCH * STEPS,))) for _ in range(n_clients)
    ]
    recipe = Recipe(optimizer=SGD(LR), batch_size=BATCH, epochs=1)
    start = {name: value.clone() for name, value in model().state_dict().items()}
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        n = 2 if options.is_quick else 7
        plain_s = least_time(lambda: _plain(model(), start, data), n).wall_s
        rows = [{"strategy": "plain torch loop", "clients": n_clients, "round_s": plain_s, "speed_up": 1.0}]
        for name in ("serial", f"fused:{n_clients}"):
            with Trainer(model, strategy=name) as trainer:
                round_s = least_time(lambda one=trainer: one.train(data, recipe, reduce="mean"), n).wall_s
            rows.append(
                {"strategy": name, "clients": n_clients, "round_s": round_s, "speed_up": plain_s / round_s}
            )
    finally:
        torch.set_num_threads(before)
    note = (
        f"{n_clients} clients, 2,410 parameters, {STEPS} steps of {BATCH} examples; one thread, best of {n}."
    )
    return TrialReport("clients", "", rows, note)


def _plain(model, start, data) -> None:
    """Train the clients one after the other in plain torch, the loop that everybody writes."""
    import torch.nn.functional as F
    from torch.optim import SGD

    for x, y in data:
        model.load_state_dict(start)
        optimizer = SGD(model.parameters(), lr=LR)
        for i in range(STEPS):
            rows = slice(i * BATCH, (i + 1) * BATCH)
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()


MIB = 1 << 20


def same(item: Any) -> Any:
    return item


def overhead(options: BenchOptions) -> TrialReport:
    """Microseconds per task, workers warm; every library with its own or a fair chunk size."""
    n = 20_000 if options.is_quick else 100_000
    rows = [
        {"executor": name, "start_s": start_s, "us_per_task": 1e6 * map_s / n, "tasks_per_s": n / map_s}
        for name, start_s, map_s in _time_peers(options, range(n), 250, 2 if options.is_quick else 5)
    ]
    note = (
        f"{n:,} tasks that return their argument, {options.n_workers} workers, results in order; wall time, "
        "best of the rounds. Others get chunks of 250; evenload chooses its own, joblib too."
    )
    return TrialReport("executor", "", rows, note, missing=missing_peers())


def transport(options: BenchOptions) -> TrialReport:
    """MiB a second to workers and back: what a task costs that only looks at an array."""
    import numpy as np

    n_mib = 64 if options.is_quick else 512
    arrays = [np.full(MIB // 8, i, dtype=np.float64) for i in range(n_mib)]
    rows = [
        {"executor": name, "mib_per_s": 2 * n_mib / map_s, "ms_per_mib": 500 * map_s / n_mib}
        for name, _, map_s in _time_peers(options, arrays, 1, 1 if options.is_quick else 3)
    ]
    note = f"{n_mib} arrays of 1 MiB to {options.n_workers} workers and back again, one task each."
    return TrialReport("transport", "", rows, note, missing=missing_peers())


def _time_peers(
    options: BenchOptions, items: Sequence[Any], chunk: int, n_rounds: int
) -> list[tuple[str, float, float]]:
    """Name, seconds to the first result of new workers, least seconds for all items."""
    found = []
    for name, kind in PEERS.items():
        is_there = not kind.package or is_installed(kind.package)
        if not is_there or (name != "evenload" and not options.has_peers):
            continue
        began = time.perf_counter()
        peer = kind()
        peer.start(options.n_workers)
        with contextlib.closing(peer):
            list(peer.imap(same, items[: options.n_workers], 1))
            start_s = time.perf_counter() - began
            own = None if kind.has_own_chunks else chunk
            best = least_time(
                lambda one=peer, own=own: list(one.imap(same, items, own)), n_rounds, warms_up=False
            )
            if len(best.result) != len(items):
                raise AssertionError(f"{name} lost results")
            found.append((name, start_s, best.wall_s))
    return found
