"""One federated round by every strategy, beside plain serial torch: seconds of CPU and of the clock.

    python benchmarks/clients_strategies.py [MODEL ...] [--clients 20 100] [--no-compile] [--ray]

Samples are interleaved, so that a busy machine disturbs all alike; the least of each is kept. Ratios are to
plain serial torch of the same run. CPU time is this process's, so there is none of other processes. Streams
and devices take part where there is a CUDA GPU; Ray, which keeps the machine busy as long as it is there,
by itself at the end. ``tuning`` says what "auto" spends on its choice if it is told of 100 rounds.
"""

import argparse
import time

import torch
from clients_models import BATCH, LR, MODELS, STEPS, clients, serial
from record import print_table, record

from evenload.clients import SGD, Recipe, Trainer

RESULTS = {
    "clients_small": ("64-32-10", "784-128-10"),
    "clients_larger": ("LeNet-5", "GRU", "transformer"),
}
RECIPE = Recipe(optimizer=SGD(LR), batch_size=BATCH, epochs=1)


def strategies(n: int, compiles: bool, has_rules: bool) -> list[str]:
    some = min(10, n)
    inner = ["rules" if has_rules else "fused"]
    names = ["serial", "threads*2/eager", "processes*2/eager"]
    if torch.cuda.is_available():
        names += ["devices/eager", "streams*4/eager", f"streams*1/fused:{n}", f"streams*4/fused:{-(-n // 4)}"]
    for kind in inner:
        names += [f"{kind}:{some}", f"{kind}:{n}", f"threads*2/{kind}:{some}"]
        if compiles:
            names += [f"{kind}-compiled:{c}" for c in dict.fromkeys((some, n))]
            names += [f"threads*2/{kind}-compiled:{some}"]
    return names


def is_elsewhere(strategy: str) -> bool:
    return strategy.startswith(("processes", "devices", "ray"))


def measure(name: str, n: int, repeats: int, names: list[str], rounds: int) -> list[dict]:
    data, model = clients(name, n), MODELS[name]()
    start = {k: t.clone() for k, t in model.state_dict().items()}
    runs = {"plain torch": lambda i: serial(model, start, data)}
    trainers = {}
    for text in names:
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
        plan = trainers[text].train(data, RECIPE, reduce="mean").plan if text in trainers else None
        ran = str(plan.strategy) if plan else ""
        rows.append(
            {
                "model": name,
                "clients": n,
                "strategy": text,
                "ran": ran.replace("inline/", ""),
                "cpu, ms": None if is_elsewhere(ran) else cpu * 1e3,
                "clock, ms": wall * 1e3,
                "x cpu": None if is_elsewhere(ran) else best["plain torch"][0] / cpu,
                "x clock": best["plain torch"][1] / wall,
                "first, s": first[text],
            }
        )
    for trainer in trainers.values():
        trainer.close()
    return rows


def tuning(name: str, n: int, rounds: int = 100, repeats: int = 5) -> dict:
    """What the first call takes beyond a round, as a share of ``rounds`` such rounds."""
    data, spent = clients(name, n), []
    with Trainer(MODELS[name], strategy="auto", rounds=rounds) as trainer:
        for i in range(1 + repeats):
            began = time.perf_counter()
            plan = trainer.train(data, RECIPE, round=i, reduce="mean").plan
            spent.append(time.perf_counter() - began)
    first, least = spent[0], min(spent[1:])
    share = (first - least) / (rounds * least)
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
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=1000, help="that 'auto' is told are to come")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--ray", action="store_true", help="rows for clients on a local Ray, too")
    parser.add_argument("--name", help="of one result for all; by default small and larger models apart")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    groups = {asked.name: asked.models} if asked.name else RESULTS
    for result, members in groups.items():
        cases = [(model, n) for model in asked.models if model in members for n in asked.clients]
        rows, spent = [], []
        for model, n in cases:
            names = strategies(n, not asked.no_compile, model in ("GRU", "LeNet-5"))
            rows += measure(model, n, asked.repeats, [*names, "auto"], asked.rounds)
            spent.append(tuning(model, n))
        for model, n in cases if asked.ray else ():
            rows += measure(model, n, asked.repeats, ["ray*2/eager"], 1)[1:]
        rows.sort(key=lambda row: cases.index((row["model"], row["clients"])))
        if rows:
            print_table(spent)
            record(result, rows, batch=BATCH, steps=STEPS, tuning=spent)


if __name__ == "__main__":
    main()
