"""Every way of training clients beside the others: times, accuracy, distance from serial, and advice."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from evenload.clients.algorithms.base import mean_of
from evenload.clients.evaluation import evaluate
from evenload.clients.spread.equivalence_check import difference
from evenload.clients.trainer import Trainer
from evenload.clients.values.recipe import Recipe
from evenload.clients.values.result import TrainResult
from evenload.clients.values.strategy import Strategy
from evenload.errors import EvenloadError

WAYS = ("serial", "threads", "processes", "merged", "fused", "streams", "devices")
GAIN = 1.05  # times serial from which a way is called faster


@dataclass(frozen=True, slots=True)
class ComparedWay:
    """One way of training, measured.

    ran        the strategy that ran, if another than was asked for: ``why`` says the reason
    seconds    of a round, the least of some warm ones; None if it could not run
    first_s    of the first round, with all that starting takes
    distance   the largest difference of a client's weight from serial training
    accuracy   of the mean of all clients' models on the test examples; None without them
    n_failed   clients that did not end well
    """

    way: str
    ran: str
    seconds: float | None = None
    first_s: float | None = None
    distance: float | None = None
    accuracy: float | None = None
    n_failed: int = 0
    why: str = ""


def compare_ways(
    model: Any,
    datasets: Sequence[Any],
    recipe: Recipe,
    *,
    ways: Sequence[str] = WAYS,
    workers: int | None = None,
    chunk: int | None = None,
    devices: Any = "all",
    test: Any = None,
    repeats: int = 3,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> list[ComparedWay]:
    """Train the same clients in each of ``ways``, serially first; each ends what it began before the next.

    workers  threads, processes or streams; as many as there are cores (or 4 streams) if None
    chunk    clients in a fused step; all of them if None
    A way that cannot run here is in the list with the reason. Raises TaskError if serial training fails.
    """
    truth: TrainResult | None = None
    found: list[ComparedWay] = []
    for way in dict.fromkeys(("serial", *ways)):
        strategy = _strategy(way, workers, chunk or max(1, len(datasets)))
        try:
            with Trainer(model, strategy=strategy, devices=devices, seed=seed, rounds=repeats + 1) as trainer:
                run, seconds = _timed(trainer, datasets, recipe, repeats, clock)
                truth = truth or run
                accuracy = _accuracy(trainer, run, test, recipe)
        except EvenloadError as error:
            if way == "serial":
                raise
            found.append(ComparedWay(way, str(strategy), why=str(error).splitlines()[0]))
            continue
        found.append(_measured(way, strategy, run, truth, seconds, accuracy))
    return found


def _timed(
    trainer: Trainer, datasets: Sequence[Any], recipe: Recipe, repeats: int, clock: Callable[[], float]
) -> tuple[TrainResult, list[float]]:
    """The result of a round, and the seconds of the first one and of ``repeats`` more."""
    seconds: list[float] = []
    while True:
        began = clock()
        run = trainer.train(datasets, recipe, on_error="return")
        seconds.append(clock() - began)
        if len(seconds) > repeats:
            return run, seconds


def advice(found: Sequence[ComparedWay], *, n_clients: int, batch_size: int) -> list[str]:
    """What the comparison says for ``--max-workers`` and ``--batch-size``, one sentence each."""
    by_name = {way.way: way for way in found if way.seconds is not None}
    serial_s = by_name["serial"].seconds or 0.0
    times = {name: serial_s / way.seconds for name, way in by_name.items() if way.seconds}
    same = {name: gain for name, gain in times.items() if name != "merged" and not by_name[name].why}
    best = max(same, key=lambda name: same[name])
    ran, gain = by_name[best].ran, f"{same[best]:.1f} times serial, with the same result."
    if best == "serial" or same[best] < GAIN:
        first = "--strategy serial: training one client after the other is the fastest here with this result."
    elif best == "fused":
        first = f"--max-workers 1 --strategy {ran}: one worker, {n_clients} clients in one step: {gain}"
    else:
        workers = Strategy.parse(ran).workers
        flag = f"--max-workers {workers} " if workers else ""
        first = f"{flag}--strategy {ran}: {gain}"
    others = [name for name in ("threads", "processes", "streams") if name in same and name != best]
    lines = [first, *(f"--max-workers with {name}: {same[name]:.2f} times serial." for name in others)]
    if "merged" in times:
        far, rows = by_name["merged"].distance or 0.0, batch_size * n_clients
        lines.append(
            f"--batch-size {rows} in place of clients (merged) is another training: it ends {far:.1e} away "
            f"from the clients' own models, {times['merged']:.1f} times serial."
        )
    return lines


def _strategy(way: str, workers: int | None, chunk: int) -> Strategy:
    if way in ("threads", "processes", "streams", "devices"):
        inner = "fused" if way in ("streams", "devices") else "eager"
        return Strategy(way, inner, chunk, workers if way != "devices" else None)
    if way == "fused":
        return Strategy(inner="fused", chunk=chunk)
    return Strategy.parse(way)


def _measured(
    way: str,
    asked: Strategy,
    run: TrainResult,
    truth: TrainResult,
    seconds: Sequence[float],
    accuracy: float | None,
) -> ComparedWay:
    is_other = run.plan.strategy != asked
    pairs = [(a.state, b.state) for a, b in zip(run, truth, strict=True) if a.is_usable and b.is_usable]
    return ComparedWay(
        way=way,
        ran=str(run.plan.strategy),
        seconds=min(seconds[1:]),
        first_s=seconds[0],
        distance=max((difference(a, b) for a, b in pairs), default=None),
        accuracy=accuracy,
        n_failed=len(run.not_ok),
        why=next(iter(run.plan.reasons.values()), run.plan.why) if is_other else "",
    )


def _accuracy(trainer: Trainer, run: TrainResult, test: Any, recipe: Recipe) -> float | None:
    """Accuracy of the mean of the clients' models, weighted by their rows."""
    if test is None or not any(result.is_usable for result in run):
        return None
    return evaluate(trainer.model, mean_of(run), test, recipe).get("accuracy")
