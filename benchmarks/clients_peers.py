"""A whole FedAvg round of small clients: evenload beside plain torch, Flower, pfl-research, FedJAX and JAX.

    python benchmarks/clients_peers.py --flower PYTHON --pfl PYTHON --jax PYTHON
        [MODEL ...] [--clients 20 100] [--rounds 12] [--repeats 3]

Peers pin versions of what others need, so each has an interpreter of its own, named here; what is not named
is left out:
    Flower  pip install torch 'flwr[simulation]==1.41.*', and evenload for its apps on evenload's executor
    pfl     pip install torch 'pfl[pytorch]==0.6.0'
    JAX     pip install jax fedjax

Every client takes part in each round: 10 SGD steps of 32 rows. Flower runs on two workers, the others on
one core. A run's figure is the least of its rounds, the first left out. Short rounds go on for two
seconds: twelve of five milliseconds may all fall into one disturbance. All are run several times, in
turns, each peer in fresh processes: the figure is the least of the runs, and "to" the most. A peer whose
runs differ by more than half cannot be told apart from what the machine did meanwhile: its row has no
figures, and says so.

Flower as its pages recommend for many light clients: one CPU for each client (two are the default), no
dashboard, no evaluation, and actors that stay and keep their examples from round to round.
"""

import argparse
import itertools
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import torch
from clients_models import BATCH, LR, MODELS, STEPS, clients, serial
from record import print_table, record

from evenload.cli.bench.measure.timing import least_time
from evenload.clients import SGD, Recipe, Trainer

HERE = Path(__file__).parent
MOST_APART = 1.5  # times the least, that another run of the same may take
SECONDS = 2.0  # of rounds, at least
TO_COME = 3000  # rounds that "auto" is told of, so that it may compile


def own(model: str, n: int, rounds: int) -> dict[str, dict[str, float]]:
    data, recipe = clients(model, n), Recipe(optimizer=SGD(LR), batch_size=BATCH, epochs=1)
    net, numbers = MODELS[model](), itertools.count()
    start = {name: t.clone() for name, t in net.state_dict().items()}
    found = {"plain torch": least(lambda: serial(net, start, data), rounds)}
    with Trainer(MODELS[model], rounds=TO_COME) as trainer:
        found["evenload"] = least(
            lambda: trainer.train(data, recipe, round=next(numbers), reduce="mean"), rounds
        )
        found["evenload"]["ran"] = str(trainer.train(data, recipe, reduce="mean").plan.strategy)
    return found


def least(run: Callable[[], object], rounds: int) -> dict:
    best = least_time(run, rounds, for_s=SECONDS)
    return {"round_s": best.wall_s, "cpu_s": best.cpu_s}


def together(runs: list[dict[str, dict]]) -> dict[str, dict]:
    """The least of several runs for each peer, with all of them beside it."""
    found: dict[str, dict] = {}
    for peer in runs[0]:
        of_peer = [run[peer] for run in runs if peer in run]
        best = min(of_peer, key=lambda one: one.get("round_s", float("inf")))
        found[peer] = {**best, "runs": [one["round_s"] for one in of_peer if "round_s" in one]}
    return found


def ask(python: str, script: str, *arguments: object) -> dict:
    """What a script prints last, run by another interpreter with one thread per process."""
    env = {**os.environ, "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0"}
    env |= {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "RAY_USAGE_STATS_ENABLED": "0"}
    command = [python, str(HERE / "clients_peers" / script), *map(str, arguments)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1200)
    for line in reversed(done.stdout.splitlines()):
        if line.startswith("{"):
            return json.loads(line)
    raise RuntimeError(f"{script}: {done.stderr[-1500:]}")


def by_peers(asked: argparse.Namespace, model: str, n: int) -> dict[str, dict]:
    """What the peers take whose interpreters are named."""
    found, rounds = {}, asked.rounds
    if asked.flower:
        found["Flower"] = ask(asked.flower, "flower_round.py", model, n, rounds, "ray")
        found["Flower's apps on evenload"] = ask(
            asked.flower, "flower_round.py", model, n, rounds, "evenload"
        )
    if asked.pfl:
        found["pfl-research"] = ask(asked.pfl, "pfl_round.py", model, n, max(rounds, 800 // n))
    if asked.jax and model[0].isdigit():
        found |= ask(asked.jax, "jax_round.py", model, n, rounds)
    return found


def rows_of(model: str, n: int, found: dict[str, dict]) -> list[dict]:
    rows, ours = [], found["evenload"]["round_s"]
    for peer, one in found.items():
        runs = one["runs"]
        row = {"model": model, "clients": n, "peer": peer, "clock, ms": None, "to": None}
        row |= {"times evenload": None, "cpu, ms": None, "note": one.get("ran") or one.get("error") or ""}
        if runs and max(runs) > MOST_APART * min(runs):
            low, high = 1e3 * min(runs), 1e3 * max(runs)
            row["note"] = f"left out: {low:,.0f} to {high:,.0f} ms in {len(runs)} runs"
        elif runs:
            row |= {"clock, ms": 1e3 * min(runs), "to": 1e3 * max(runs), "times evenload": min(runs) / ours}
            row["cpu, ms"] = 1e3 * one["cpu_s"] if "cpu_s" in one else None
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", default=["64-32-10", "784-128-10"])
    parser.add_argument("--clients", type=int, nargs="+", default=[20, 100])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=3, help="runs of everything, in turns")
    for name in ("flower", "pfl", "jax"):
        parser.add_argument(f"--{name}", metavar="PYTHON", help="interpreter that has it")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for model in asked.models:
        for n in asked.clients:
            runs = [own(model, n, asked.rounds) | by_peers(asked, model, n) for _ in range(asked.repeats)]
            rows += rows_of(model, n, together(runs))
            print_table([row for row in rows if row["model"] == model and row["clients"] == n])
    record("clients_peers", rows, repeats=asked.repeats, batch=BATCH, steps=STEPS, torch=torch.__version__)


if __name__ == "__main__":
    main()
