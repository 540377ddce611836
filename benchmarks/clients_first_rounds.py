"""A few rounds from a cold start: `auto` beside plain torch, in CPU seconds of whole processes.

    python benchmarks/clients_first_rounds.py [MODEL:CLIENTS ...] [--rounds 1 5 20 100] [--repeats 3]

Each figure is a fresh interpreter: imports, data, every round, and the choice of a strategy with its checks
against serial training are in it, on both sides. ``auto`` is told how many rounds there are. Plain torch and
evenload run in turns; a ratio is of neighbours, the median of them, and beside it the least and the most.

"loaded" is the same without the imports, and after one step of training: torch loads its compiler with its
first optimiser, a second of CPU time that evenload does without. So that column is what fusing saves alone.
"""

import argparse
import json
import statistics
import time
from typing import Any

import torch
from clients_models import BATCH, LR, MODELS, STEPS, clients, serial
from cpu_clock import ended_children_cpu_s
from executor_overhead import in_fresh_interpreter
from record import print_table, record

CASES = ("64-32-10:5", "64-32-10:100", "784-128-10:20", "LeNet-5:5", "transformer:5")
LOADED = (1,)  # rounds for which "loaded" is measured, too: later on the start is little of the whole
LONG = 50  # rounds from which on a process is measured twice only


def cpu_s() -> float:
    """CPU seconds of this process and of children that have ended."""
    return time.process_time() + ended_children_cpu_s()


def train_plainly(model: str, n: int, rounds: int) -> str:
    net, data = MODELS[model](), clients(model, n)
    state = {name: t.clone() for name, t in net.state_dict().items()}
    for _ in range(rounds):
        state = serial(net, state, data)
    return "plain torch"


def train_by_auto(model: str, n: int, rounds: int) -> str:
    from evenload.clients import SGD, Recipe, Trainer

    data, recipe = clients(model, n), Recipe(optimizer=SGD(LR), batch_size=BATCH, epochs=1)
    state, found = None, None
    with Trainer(MODELS[model], rounds=rounds) as trainer:
        for number in range(rounds):
            found = trainer.train(data, recipe, start=state, round=number, reduce="mean")
            state = found.reduced
    assert found is not None
    return str(found.plan.strategy)


WAYS = {"plain": train_plainly, "auto": train_by_auto}


def one(way: str, case: str, rounds: int, is_loaded: bool) -> dict:
    """What this process takes for it; ``is_loaded``: after one step of the other kind and of this one."""
    torch.set_num_threads(1)
    model, n = case.split(":")
    if is_loaded:
        train_plainly("64-32-10", 1, 1)
        train_by_auto("64-32-10", 1, 1)
    began = cpu_s() if is_loaded else 0.0
    ran = WAYS[way](model, int(n), rounds)
    return {"cpu_s": cpu_s() - began, "ran": ran}


def ask(*one: Any) -> dict:
    return in_fresh_interpreter(*one, script=__file__)


def row_of(case: str, rounds: int, repeats: int) -> dict:
    model, n = case.split(":")
    kinds = (False, True) if rounds in LOADED else (False,)
    pairs: dict[bool, list[tuple[dict, dict]]] = {kind: [] for kind in kinds}
    for _ in range(repeats if rounds < LONG else min(2, repeats)):
        for kind, found in pairs.items():
            found.append((ask("plain", case, rounds, kind), ask("auto", case, rounds, kind)))
    ratios = {k: sorted(b["cpu_s"] / a["cpu_s"] for a, b in found) for k, found in pairs.items()}
    cold = pairs[False]
    return {
        "model": model,
        "clients": int(n),
        "rounds": rounds,
        "auto": cold[-1][1]["ran"],
        "plain, s": min(a["cpu_s"] for a, _ in cold),
        "auto, s": min(b["cpu_s"] for _, b in cold),
        "auto / plain": statistics.median(ratios[False]),
        "from": ratios[False][0],
        "to": ratios[False][-1],
        "loaded": statistics.median(ratios[True]) if True in ratios else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="MODEL:CLIENTS")
    parser.add_argument("--rounds", type=int, nargs="+", default=[1, 5, 20, 100])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(one(*json.loads(asked.one))))
        return
    rows = []
    for case in asked.cases:
        rows += [row_of(case, rounds, asked.repeats) for rounds in asked.rounds]
        print_table(rows[-len(asked.rounds) :])
    record("clients_first_rounds", rows, steps=STEPS, batch=BATCH, repeats=asked.repeats)


if __name__ == "__main__":
    main()
