"""One federated round by every strategy, beside plain serial torch: seconds of CPU and of the clock.

    python benchmarks/clients_strategies.py [MODEL ...] [--clients 20 100] [--no-compile] [--ray]
        [--batch 8] [--cores 1] [--strategies serial threads*2/eager auto] [--name clients_batch8]

Samples are interleaved, so that a busy machine disturbs all alike; the least of each is kept. Ratios are to
plain serial torch of the same run. CPU time is this process's, so there is none of other processes. Streams
and devices take part where there is a CUDA GPU; Ray, which keeps the machine busy as long as it is there,
by itself at the end. ``tuning`` says what "auto" spends on its choice if it is told of 100 rounds.

The least times of one and the same strategy differ by a tenth where others use the machine, too. So "auto"
and the best strategy picked by hand run once more in pairs, one right after the other: ``pairs`` has the
median of their ratios.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from typing import Any

import torch
from clients_models import BATCH, LR, MODELS, STEPS, clients, serial
from record import print_table, record

from evenload.cli.bench.measure.timing import LeastTime, least_in_turns
from evenload.clients import SGD, Recipe, Trainer

Way = Callable[[], Any]

RESULTS = {
    "clients_small": ("64-32-10", "784-128-10"),
    "clients_larger": ("LeNet-5", "GRU", "transformer"),
}
HAVE_RULES = ("LeNet-5", "GRU")
LEAST_PAIRS = 3
TUNED = 1  # times: of more, the median counts


def recipe_of(batch: int) -> Recipe:
    return Recipe(optimizer=SGD(LR), batch_size=batch, epochs=1)


def strategies(n: int, compiles: bool, has_rules: bool) -> list[str]:
    some, cores = min(10, n), len(os.sched_getaffinity(0))
    names = ["serial"]
    if cores > 1:
        names += [f"threads*{cores}/eager", f"processes*{cores}/eager"]
    if torch.cuda.is_available():
        names += ["devices/eager", "streams*4/eager", f"streams*1/fused:{n}", f"streams*4/fused:{-(-n // 4)}"]
    kind = "rules" if has_rules else "fused"
    names += [f"fused:{n}", f"rules:{n}"] if has_rules else [f"fused:{n}"]
    names += [f"threads*{cores}/{kind}:{some}"] if cores > 1 else []
    if compiles:
        # By rules the larger graph takes a minute to compile, and is slower than the smaller one.
        names += [f"{kind}-compiled:{some if has_rules else n}"]
        names += [f"threads*{cores}/{kind}-compiled:{some}"] if cores > 1 else []
    return names


def ways(
    make: Callable[[], Any], data: Any, batch: int, names: Sequence[str], rounds: int, ended: ExitStack
) -> dict[str, Way]:
    """A round by plain torch and by each strategy; trainers end with ``ended``."""
    model, recipe, numbers = make(), recipe_of(batch), count()
    start = {k: t.clone() for k, t in model.state_dict().items()}

    def by(text: str) -> Way:
        trainer = Trainer(make, strategy=text, rounds=rounds if text == "auto" else 1)
        ended.callback(trainer.close)
        return lambda: trainer.train(data, recipe, round=next(numbers), reduce="mean")

    return {"plain torch": lambda: serial(model, start, data, batch)} | {text: by(text) for text in names}


def ran_by(found: LeastTime) -> str:
    """The strategy that a trainer chose; "" of plain torch."""
    plan = getattr(found.result, "plan", None)
    return str(plan.strategy).replace("inline/", "") if plan else ""


def measure(
    name: str, n: int, repeats: int, names: list[str], rounds: int, batch: int
) -> tuple[list[dict], list[dict]]:
    """A row per strategy; and what "auto" and the best run by hand take in pairs, if both are there."""
    with ExitStack() as ended:
        runs = ways(MODELS[name], clients(name, n, batch), batch, names, rounds, ended)
        first = {text: least_in_turns({text: run}, 1, warms_up=False)[text] for text, run in runs.items()}
        best = least_in_turns(runs, repeats, warms_up=False)
        ran = {text: ran_by(one) for text, one in best.items()}
        pair = paired(runs, ran, {text: one.wall_s for text, one in best.items()}, repeats)
    plain, rows = best["plain torch"], []
    for text, one in best.items():
        row = {"model": name, "clients": n, "strategy": text, "ran": ran[text]}
        has_cpu = not ran[text].startswith(("processes", "devices", "ray"))
        row |= {"cpu, ms": one.cpu_s * 1e3 if has_cpu else None, "clock, ms": one.wall_s * 1e3}
        row |= {"x cpu": plain.cpu_s / one.cpu_s if has_cpu else None, "x clock": plain.wall_s / one.wall_s}
        rows.append(row | {"first, s": first[text].wall_s})
    return rows, [{"model": name, "clients": n, **pair}] if pair else []


def paired(
    runs: Mapping[str, Way], ran: Mapping[str, str], least: Mapping[str, float], repeats: int
) -> dict | None:
    """ "auto" and the fastest strategy picked by hand, one right after the other, in turns who is first."""
    by_hand = [text for text in ran if text not in ("auto", "plain torch")]
    if "auto" not in ran or not by_hand:
        return None
    best = min(by_hand, key=lambda text: least[text])
    ratios = []
    for i in range(max(LEAST_PAIRS, repeats)):
        spent = {}
        for text in ("auto", best) if i % 2 else (best, "auto"):
            began = time.perf_counter()
            runs[text]()
            spent[text] = time.perf_counter() - began
        ratios.append(spent["auto"] / spent[best])
    return {
        "auto": ran["auto"],
        "best by hand": ran[best],
        "auto / best": statistics.median(ratios),
        "least, most": [min(ratios), max(ratios)],
        "pairs": len(ratios),
    }


def tuning(name: str, n: int, batch: int, rounds: int = 100, repeats: int = 4) -> dict:
    """What the first call takes beyond a round, as a share of ``rounds`` such rounds: the median of some."""
    data, recipe, tried = clients(name, n, batch), recipe_of(batch), []
    for _ in range(TUNED):
        spent = []
        with Trainer(MODELS[name], strategy="auto", rounds=rounds) as trainer:
            for i in range(1 + repeats):
                began = time.perf_counter()
                plan = trainer.train(data, recipe, round=i, reduce="mean").plan
                spent.append(time.perf_counter() - began)
        first, least = spent[0], min(spent[1:])
        tried.append(((first - least) / (rounds * least), first, least, plan))
    share, first, least, plan = sorted(tried, key=lambda t: t[0])[TUNED // 2]
    return {
        "model": name,
        "clients": n,
        "ran": str(plan.strategy).replace("inline/", ""),
        "tuning, s": first - least,
        f"{rounds} rounds, s": rounds * least,
        "share, %": 100 * share,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--clients", type=int, nargs="+", default=[20, 100])
    parser.add_argument("--batch", type=int, default=BATCH, help="rows in a step of a client")
    parser.add_argument("--cores", type=int, help="so many at most; by default all that this process has")
    parser.add_argument("--strategies", nargs="+", help="only these, 'auto' among them if it is wanted")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=1000, help="that 'auto' is told are to come")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--ray", action="store_true", help="rows for clients on a local Ray, too")
    parser.add_argument("--name", help="of one result for all; by default small and larger models apart")
    asked = parser.parse_args()
    if asked.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: asked.cores])
    torch.set_num_threads(1)
    groups = {asked.name: asked.models} if asked.name else RESULTS
    for result, members in groups.items():
        cases = [(model, n) for model in asked.models if model in members for n in asked.clients]
        rows, pairs, spent = [], [], []
        for model, n in cases:
            names = [*strategies(n, not asked.no_compile, model in HAVE_RULES), "auto"]
            names = asked.strategies or names
            found, pair = measure(model, n, asked.repeats, names, asked.rounds, asked.batch)
            rows, pairs = rows + found, pairs + pair
            if "auto" in names:
                spent.append(tuning(model, n, asked.batch))
        for model, n in cases if asked.ray else ():
            rows += measure(model, n, asked.repeats, ["ray*2/eager"], 1, asked.batch)[0][1:]
        rows.sort(key=lambda row: cases.index((row["model"], row["clients"])))
        if rows:
            print_table(spent)
            print_table(pairs)
            facts = {"batch": asked.batch, "steps": STEPS, "used_cores": len(os.sched_getaffinity(0))}
            record(result, rows, **facts, pairs=pairs, tuning=spent)


if __name__ == "__main__":
    main()
