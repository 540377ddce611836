"""A short run of a fused engine on the user's own clients, compared with serial training of the same."""

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from evenload.clients.fused.engine import FusedEngine, longest_first
from evenload.clients.values.result import ClientResult
from evenload.clients.values.task import ClientTask

# Largest share of the way a client has gone that rounding may account for, by kind of number.
ALLOWED = {torch.float64: 1e-8, torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 5e-2}
# What torch says when vmap cannot do something, and what it means for the model.
MEANINGS = (
    ("data-dependent control flow", "the model acts on a tensor's value (an `if` on it, .item(), float())"),
    ("randomness", "the model draws random numbers itself: use nn.Dropout"),
    ("dynamic shape", "a tensor's shape in the model depends on values (boolean indexing, nonzero)"),
    ("setup_context", "a custom autograd.Function without a vmap rule"),
    ("generate_vmap_rule", "a custom autograd.Function without a vmap rule"),
    ("inplace arithmetic", "the model writes in place into a tensor that clients share"),
    ("saved tensor hooks", "checkpointing by saved-tensor hooks"),
)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The outcome of a comparison of an engine with serial training.

    refusal     why the engine cannot be used, or None
    difference  the largest absolute difference of a number from serial training; None if it was not compared
    """

    refusal: str | None
    difference: float | None = None


def clients_to_check(tasks: Sequence[ClientTask]) -> list[ClientTask]:
    """The clients of most steps, of fewest and of the shortest batch, each cut to a few batches."""
    ranked = longest_first(tasks)
    shortest = min(tasks, key=lambda task: task.batches.counts.min() / task.recipe.batch_size)
    chosen = {task.client: task for task in (ranked[0], ranked[-1], shortest)}
    return [_cut(task) for task in chosen.values()]


def check_engine(
    engine: FusedEngine,
    serial: Callable[[ClientTask], ClientResult],
    tasks: Sequence[ClientTask],
    n_rows: int | None = None,
) -> CheckResult:
    """Train ``tasks`` by ``engine``, and compare them with ``serial`` training of each.

    Steps ``n_rows`` rows (one per client by default), which these few clients need not fill: the graph that
    is compiled is then the one used later. An exception of the engine is the reason for a refusal. It has
    copies of the starts: what is not trained is not copied later, and a model may write into it.
    """
    copies = {id(task.start): {n: t.clone() for n, t in task.start.items()} for task in tasks}
    of_engine = [dataclasses.replace(task, start=copies[id(task.start)]) for task in tasks]
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            batches = list(
                engine.train_slots(of_engine, longest_first(of_engine), n_rows or len(tasks), pads=True)
            )
    except Exception as error:
        return CheckResult(_meaning(error))
    slow = [str(w.message) for w in said if "batching rule" in str(w.message)]
    if slow:
        name = slow[0].partition("implemented the batching rule for ")[2].partition(". ")[0]
        return CheckResult(f"vmap would run {name or 'an operation'} client by client")
    fused = {result.client: result for batch in batches for result in batch}
    return _compare(fused, tasks, serial)


def difference(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """Largest absolute difference of two states; NaN equals NaN."""
    worst = 0.0
    for name in a:
        gap = (a[name].double() - b[name].double()).abs()
        gap = gap[~(a[name].isnan() & b[name].isnan())] if a[name].is_floating_point() else gap
        worst = max(worst, float(gap.max()) if gap.numel() else 0.0)
    return worst


def _compare(
    fused: Mapping[int, ClientResult],
    tasks: Sequence[ClientTask],
    serial: Callable[[ClientTask], ClientResult],
) -> CheckResult:
    worst = 0.0
    for task in tasks:
        truth, ours = serial(task), fused[task.client]
        if truth.status == "failed":
            return CheckResult(f"serial training fails: {truth.error}")
        if (truth.status, truth.steps) != (ours.status, ours.steps):
            return CheckResult(
                f"client {task.client} is {ours.status} after {ours.steps} steps, serial {truth.status}"
            )
        if truth.status != "ok":
            continue
        worst = max(worst, difference(truth.state, ours.state))
        gap, way = _norms(truth.state, ours.state), _norms(truth.state, task.start)
        dtype = next(t.dtype for t in truth.state.values() if t.is_floating_point())
        if task.recipe.precision:
            dtype = torch.bfloat16
        if gap > ALLOWED.get(dtype, 1e-3) * way + 1e-12:
            return CheckResult(
                f"client {task.client} ends {gap:.1e} away from serial, of a way of {way:.1e}", worst
            )
    return CheckResult(None, worst)


def _norms(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    return float(np.sqrt(sum(float(((a[n].double() - b[n].double()) ** 2).sum()) for n in a)))


def _cut(task: ClientTask) -> ClientTask:
    """The task with its first, shortest and last batch, padded with another row than the batch's first.

    Whether padding may enter at all is shown before, by ``step.padding_probe``.
    """
    whole = task.batches
    cut = whole.some(sorted({0, int(whole.counts.argmin()), whole.n_steps - 1}))
    is_real = np.arange(cut.rows.shape[1]) < cut.counts[:, None]
    rows = np.where(is_real, cut.rows, (cut.rows[:, :1] + 1) % len(task.rows))
    return dataclasses.replace(task, batches=dataclasses.replace(cut, rows=rows))


def _meaning(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}"
    for phrase, meaning in MEANINGS:
        if phrase in text:
            return meaning
    return text.strip().splitlines()[0][:200]
