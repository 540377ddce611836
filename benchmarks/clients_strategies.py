"""One federated round by every strategy, beside plain serial torch: seconds of CPU and of the clock.

    python benchmarks/clients_strategies.py [MODEL ...] [--clients 20 100] [--repeats 7] [--no-compile]

Samples are interleaved, so that a busy machine disturbs all alike; the least of each is kept. Ratios are to
plain serial torch of the same run.
"""

import argparse
import time

import torch
from clients_models import BATCH, LR, MODELS, STEPS, clients, serial
from record import record

from evenload.clients import SGD, Recipe, Trainer

RECIPE = Recipe(optimizer=SGD(LR), batch_size=BATCH, epochs=1)


def strategies(n: int, compiles: bool, has_rules: bool) -> list[str]:
    chunks = [c for c in (10, 20, 50, 100) if c <= n]
    inner = ["rules" if has_rules else "fused"]
    names = ["serial", "threads*2/eager", "processes*2/eager"]
    for kind in inner:
        names += [f"{kind}:{chunks[0]}", f"{kind}:{n}", f"threads*2/{kind}:{chunks[0]}"]
        if compiles:
            names += [f"{kind}-compiled:{c}" for c in dict.fromkeys((chunks[0], n))]
    return names


def measure(name: str, n: int, repeats: int, compiles: bool, rounds: int) -> list[dict]:
    data, model = clients(name, n), MODELS[name]()
    start = {k: t.clone() for k, t in model.state_dict().items()}
    runs = {"plain torch": lambda i: serial(model, start, data)}
    trainers = {}
    for text in [*strategies(n, compiles, name in ("GRU", "LeNet-5")), "auto"]:
        trainers[text] = Trainer(MODELS[name], strategy=text, rounds=rounds if text == "auto" else 1)
        runs[text] = lambda i, t=trainers[text]: t.train(data, RECIPE, round=i, reduce="mean")
    best, first = {}, {}
    for text, run in runs.items():
        began = time.perf_counter()
        run(0)
        first[text] = time.perf_counter() - began
    for i in range(repeats):
        for text, run in runs.items():
            cpu, wall = time.process_time(), time.perf_counter()
            run(i + 1)
            spent = (time.process_time() - cpu, time.perf_counter() - wall)
            best[text] = tuple(map(min, spent, best.get(text, spent)))
    rows = []
    for text, (cpu, wall) in best.items():
        ran = (
            ""
            if text == "plain torch"
            else str(trainers[text].train(data, RECIPE, reduce="mean").plan.strategy)
        )
        rows.append(
            {
                "model": name,
                "clients": n,
                "strategy": text,
                "ran": ran.replace("inline/", ""),
                "cpu, ms": cpu * 1e3,
                "clock, ms": wall * 1e3,
                "x cpu": best["plain torch"][0] / cpu,
                "x clock": best["plain torch"][1] / wall,
                "first, s": first[text],
            }
        )
    for trainer in trainers.values():
        trainer.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--clients", type=int, nargs="+", default=[20, 100])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=1000, help="that 'auto' is told are to come")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--name", default="clients_strategies")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for model in asked.models:
        for n in asked.clients:
            rows += measure(model, n, asked.repeats, not asked.no_compile, asked.rounds)
    record(asked.name, rows, batch=BATCH, steps=STEPS, torch=torch.__version__)


if __name__ == "__main__":
    main()
