"""Where the time of a round of tiny clients goes: 20 of 64-32-10, all in one compiled step.

    python benchmarks/clients_profile.py [--rounds 1000]

Microseconds of this thread's CPU time in a round of ten steps, the least of so many rounds: what disturbs a
call cannot make it shorter. The products of a step are timed by themselves, on tensors of the same shapes, as
nothing can be put into compiled code; "rest of the steps" is what remains of them.
"""

import argparse
import itertools
import time
from collections.abc import Callable
from typing import Any

import torch
from clients_models import BATCH, LR, MODELS, STEPS, clients
from record import record

from evenload.cli.bench.measure.timing import least_time
from evenload.clients import SGD, Recipe, Trainer
from evenload.clients import trainer as trainer_module
from evenload.clients.algorithms.reduce import Mean
from evenload.clients.fused import slots
from evenload.clients.fused.engine import FusedEngine
from evenload.clients.fused.inductor.rewrite import program_for
from evenload.clients.tune.strategy_selector import StrategySelector

MODEL, N = "64-32-10", 20
# Part -> who does it. Each is called once in a round, the steps once for each piece of gathered rows.
PARTS: dict[str, tuple[Any, str]] = {
    "orders of rows, checks of clients": (trainer_module, "load_tasks"),
    "the strategy": (StrategySelector, "plan"),
    "tables of the run": (slots.SlotRun, "__init__"),
    "steps": (FusedEngine, "_run_steps"),
    "a segment, with its steps": (slots.SlotRun, "_run_segment"),
    "end states": (slots.SlotRun, "_leave"),
    "their mean": (Mean, "value"),
}


class Timers:
    """Seconds of this thread by part: of the round that runs, and the least of all."""

    def __init__(self) -> None:
        self.now: dict[str, float] = {}
        self.least: dict[str, float] = {}

    def around(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.now[part] = self.now.get(part, 0.0) + time.thread_time() - began

        return timed

    def end_round(self) -> None:
        for part, spent_s in self.now.items():
            self.least[part] = min(spent_s, self.least.get(part, spent_s))
        self.now.clear()


def least_s(run: Callable[[], object], times: int = 2000) -> float:
    return least_time(run, times, cpu_clock=time.thread_time, warms_up=False).cpu_s


def products_s() -> dict[str, float]:
    """Seconds of a step's products of all clients, each by our kernel for its shape."""
    n_in, n_hidden, n_out = map(int, MODEL.split("-"))
    x, first = torch.randn(N, BATCH, n_in), torch.randn(N, n_hidden, n_in)
    hidden, last = torch.randn(N, BATCH, n_hidden), torch.randn(N, n_out, n_hidden)
    of_hidden, of_out = torch.randn(N, n_hidden, BATCH), torch.randn(N, n_out, BATCH)
    return {
        "x W1": product_s(x, first.transpose(1, 2), hidden),
        "W2 h and its gradient": product_s(last, hidden.transpose(1, 2), of_out)
        + product_s(of_out.transpose(1, 2), last, hidden),
        "weights' gradients and updates": product_s(of_hidden, x, first, adds=True)
        + product_s(of_out, hidden, last, adds=True),
    }


def product_s(left: torch.Tensor, right: torch.Tensor, into: torch.Tensor, adds: bool = False) -> float:
    strides = (t.stride() for t in (into, left, right))
    program = program_for(into.shape, left.shape[2], *strides, into.dtype, adds)
    if program is None:
        raise SystemExit("there is no kernel for these products: pip install 'evenload[kernels]'")
    addresses = (left.data_ptr(), right.data_ptr(), into.data_ptr())
    return least_s(lambda: program.multiply(*addresses, N, 0))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1000)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    timers, numbers = Timers(), itertools.count()
    data, recipe = clients(MODEL, N), Recipe(optimizer=SGD(LR), batch_size=BATCH, epochs=1)
    with Trainer(MODELS[MODEL], strategy=f"fused-compiled:{N}") as trainer:

        def a_round() -> None:
            trainer.train(data, recipe, round=next(numbers), reduce="mean")

        a_round()
        whole_s = least_s(a_round, asked.rounds)
        for part, (owner, name) in PARTS.items():
            setattr(owner, name, timers.around(part, getattr(owner, name)))
        for _ in range(asked.rounds):
            a_round()
            timers.end_round()
    found, products = timers.least, {name: STEPS * s for name, s in products_s().items()}
    segment_s, steps_s = found.pop("a segment, with its steps"), found.pop("steps")
    parts = products | {"rest of the steps": steps_s - sum(products.values())}
    parts |= {"rows gathered, losses noted": segment_s - steps_s} | found
    parts["all else"] = whole_s - segment_s - sum(found.values())
    rows = [{"part": part, "us": 1e6 * s, "share": s / whole_s} for part, s in parts.items()]
    rows.append({"part": "a round", "us": 1e6 * whole_s, "share": 1.0})
    record("clients_profile", rows, model=MODEL, clients=N, batch=BATCH, steps=STEPS)


if __name__ == "__main__":
    main()
