"""A whole FedAvg round of small clients: evenload beside plain torch, Flower, pfl-research, FedJAX and JAX.

    python benchmarks/clients_peers.py --flower PYTHON --pfl PYTHON --jax PYTHON
        [MODEL ...] [--clients 20 100] [--repeats 3]

Peers pin versions of what others need, so each has an interpreter of its own, named here; what is not named
is left out:
    Flower  pip install torch 'flwr[simulation]==1.41.*', and evenload for its apps on evenload's executor
    pfl     pip install torch 'pfl[pytorch]==0.6.0'
    JAX     pip install jax fedjax

Every client takes part in each round: 10 SGD steps of 32 rows. Flower runs on two workers, the others on
one core. A run's figure is the least of its rounds, the first left out. Short rounds go on for a second:
a few of five milliseconds may all fall into one disturbance. Plain torch, evenload and JAX are run several
times in turns. Flower and pfl take seconds to start, so one process of each makes as many runs, one after
the other. The figure is the least of the runs, and "to" the most. A peer whose runs differ by more than half
cannot be told apart from what the machine did meanwhile: its row has no figures, and says so; so does one
that fails, or takes longer than LIMIT_S. The whole takes about four minutes.

JAX stands there twice: with batches that were cut beforehand and are the same in every round, and with each
client's rows shuffled in every round, as all others do it.

Flower as its pages recommend for many light clients: one CPU for each client (two are the default), no
dashboard, no evaluation, and actors that stay and keep their examples from round to round. Its server looks
for replies every tenth of a second, so that rounds take multiples of that. Starting Ray is in no figure.
"""

import argparse
import contextlib
import ctypes
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import torch
from clients_models import BATCH, LR, MODELS, STEPS, clients, serial
from record import print_table, record

from evenload.cli.bench.measure.timing import least_time
from evenload.clients import SGD, Recipe, Trainer

HERE = Path(__file__).parent
MOST_APART = 1.5  # times the least, that another run of the same may take
SECONDS, ROUNDS = 1.0, 6  # of a run, at least
LIMIT_S = 120.0  # for a process of a peer
PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
TO_COME = 3000  # rounds that "auto" is told of


@contextlib.contextmanager
def own(model: str, n: int) -> Iterator[Callable[[], dict[str, dict]]]:
    """A function that measures plain torch and evenload once more."""
    data, recipe = clients(model, n), Recipe(optimizer=SGD(LR), batch_size=BATCH, epochs=1)
    net, numbers = MODELS[model](), itertools.count()
    start = {name: t.clone() for name, t in net.state_dict().items()}
    with Trainer(MODELS[model], rounds=TO_COME) as trainer:
        ran = str(trainer.train(data, recipe, reduce="mean").plan.strategy)
        yield lambda: {
            "plain torch": least(lambda: serial(net, start, data)),
            "evenload": least(lambda: trainer.train(data, recipe, round=next(numbers), reduce="mean"))
            | {"ran": ran},
        }


def least(run: Callable[[], object]) -> dict:
    best = least_time(run, ROUNDS, for_s=SECONDS)
    return {"round_s": best.wall_s, "cpu_s": best.cpu_s}


def together(runs: list[dict[str, dict]]) -> dict[str, dict]:
    """The least of several runs for each peer, with all of them beside it."""
    found: dict[str, dict] = {}
    for peer in dict.fromkeys(peer for run in runs for peer in run):
        of_peer = [run[peer] for run in runs if peer in run]
        best = min(of_peer, key=lambda one: one.get("round_s", float("inf")))
        several = [one.get("runs_s") or [one["round_s"]] for one in of_peer if "round_s" in one]
        found[peer] = {**best, "runs": [round_s for runs_s in several for round_s in runs_s]}
    return found


def ask(python: str, script: str, *arguments: object) -> dict:
    """What a script prints last, run by another interpreter with one thread per process; or its error."""
    env = {**os.environ, "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0"}
    env |= {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "RAY_USAGE_STATS_ENABLED": "0"}
    command = [python, str(HERE / "clients_peers" / script), *map(str, arguments)]
    own = {child.pid for child in psutil.Process().children()}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, env=env, **pipes)
    try:
        told, errors = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return {"error": f"not done in {LIMIT_S:.0f} s"}
    finally:
        process.kill()
        process.wait()
        end_orphans(own)
    for line in reversed(told.splitlines()):
        if line.startswith("{"):
            return json.loads(line)
    print(f"{script}: {errors[-1500:]}", file=sys.stderr)
    return {"error": (errors.strip().splitlines() or ["it said nothing"])[-1][:200]}


def end_orphans(own: set[int]) -> None:
    """End what a peer has started and left behind, and count its CPU time as this benchmark's own."""
    while left := [child for child in psutil.Process().children() if child.pid not in own]:
        for child in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child.pid, 0)


def by_peers(asked: argparse.Namespace, model: str, n: int) -> dict[str, dict]:
    """What those peers take whose processes make all runs at once."""
    found, runs = {}, asked.repeats
    if asked.flower:
        each = max(1, 100 // n)  # rounds of a run
        found["Flower"] = ask(asked.flower, "flower_round.py", model, n, each, runs, "ray")
        found["Flower's apps on evenload"] = ask(
            asked.flower, "flower_round.py", model, n, each, runs, "evenload"
        )
    if asked.pfl:
        found["pfl-research"] = ask(asked.pfl, "pfl_round.py", model, n, max(3, 200 // n), runs)
    return found


def by_jax(asked: argparse.Namespace, model: str, n: int) -> dict[str, dict]:
    if not (asked.jax and model[0].isdigit()):
        return {}
    found = ask(asked.jax, "jax_round.py", model, n, ROUNDS)
    return {"JAX vmap + scan": found} if "error" in found else found


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
    parser.add_argument("--repeats", type=int, default=3, help="runs of everything")
    for name in ("flower", "pfl", "jax"):
        parser.add_argument(f"--{name}", metavar="PYTHON", help="interpreter that has it")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # children of peers that have ended come to us
    rows = []
    for model in asked.models:
        for n in asked.clients:
            with own(model, n) as measure:
                runs = [measure() | by_jax(asked, model, n) for _ in range(asked.repeats)]
            runs[0] |= by_peers(asked, model, n)
            rows += rows_of(model, n, together(runs))
            print_table([row for row in rows if row["model"] == model and row["clients"] == n])
    record("clients_peers", rows, repeats=asked.repeats, batch=BATCH, steps=STEPS, torch=torch.__version__)


if __name__ == "__main__":
    main()
