"""Five clients of ten steps, cold and warm: why a first measurement says nothing about strategies.

    python benchmarks/clients_cold_warm.py [MODEL ...] [--repeats 15]

Cold: one fresh interpreter runs serial, threads, processes, merged and fused training once each, in this
order, as a quick experiment would. Warm: the same interpreter runs each of them again, and keeps the least
time. "apart" is the largest difference of any weight from serial training.
"""

import argparse
import functools
import json
import subprocess
import sys
import time

import torch
from clients_models import BATCH, LR, MODELS, clients
from record import record

from evenload.cli.bench.measure.timing import least_time
from evenload.clients import SGD, Recipe, Trainer

N_CLIENTS = 5
STRATEGIES = ("serial", "threads*2/eager", "processes*2/eager", "merged", "fused:5")


def measure(name: str, repeats: int) -> list[dict]:
    torch.set_num_threads(1)
    data, recipe = clients(name, N_CLIENTS), Recipe(optimizer=SGD(LR), batch_size=BATCH, epochs=1)
    trainers, rows, truth = {}, [], None
    for strategy in STRATEGIES:
        began = time.perf_counter()
        trainers[strategy] = Trainer(MODELS[name], strategy=strategy)
        found = trainers[strategy].train(data, recipe)
        cold_s = time.perf_counter() - began
        truth = truth or found
        apart = max(
            float((a.state[n] - b.state[n]).abs().max())
            for a, b in zip(truth, found, strict=True)
            for n in a.state
        )
        rows.append(
            {"model": name, "strategy": strategy, "cold, ms": cold_s * 1e3, "warm, ms": 0.0, "apart": apart}
        )
    for row in rows:
        again = functools.partial(trainers[row["strategy"]].train, data, recipe)
        row["warm, ms"] = 1e3 * least_time(again, repeats, warms_up=False).wall_s
    for trainer in trainers.values():
        trainer.close()
    for row in rows:
        for kind in ("cold", "warm"):
            row[f"x serial, {kind}"] = rows[0][f"{kind}, ms"] / row[f"{kind}, ms"]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", default=["64-32-10", "784-128-10"])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measure(asked.models[0], asked.repeats)))
        return
    rows = []
    for name in asked.models:
        command = [sys.executable, __file__, name, "--one", "--repeats", str(asked.repeats)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rows += json.loads(done.stdout.splitlines()[-1])
    record("clients_cold_warm", rows, clients=N_CLIENTS, steps=10, batch=BATCH)


if __name__ == "__main__":
    main()
