"""One of k processes that train a share of the clients on one GPU, told by lines on stdin when to begin.

    python client_process.py --share 0 --of 2 --clients 100 --device cuda:0 --keep FOLDER MODEL/INNER ...

For each MODEL/INNER it writes "ready" once it is warm, and then "done" after each round that a line asks
for; an empty line goes on with the next. States of its first clients, after round 0, are kept in FOLDER.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("share", "of", "clients"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--keep", type=Path, required=True)
    parser.add_argument("what", nargs="+")
    given = parser.parse_args()
    import torch
    from client_cases import cases, comparable, plain, states_of

    from evenload.clients import Trainer

    comparable()
    answers, sys.stdout = sys.stdout, sys.stderr
    pretend = given.device == "cpu"
    known = cases(pretend=pretend)
    for number, what in enumerate(given.what):
        model, _, inner = what.partition("/")
        case, ids = known[model], list(range(given.clients))[given.share :: given.of]
        data = case.clients(given.clients)[given.share :: given.of]
        data = [(x.clone(), y.clone()) for x, y in data]  # its own rows alone go to the GPU
        inner = f"{inner}:{len(ids)}" if inner == "fused" else inner
        text = plain(f"streams*1/{inner}", pretend=pretend)
        with Trainer(case.model, strategy=text, devices=given.device) as trainer:
            run = trainer.train(data, case.recipe, ids=ids)
            torch.save(states_of(run), given.keep / f"{number}-{given.share}.pt")
            trainer.train(data, case.recipe, ids=ids, round=1, reduce="mean")
            print("ready", file=answers, flush=True)
            while sys.stdin.readline().strip():
                trainer.train(data, case.recipe, ids=ids, round=1, reduce="mean")
                print("done", file=answers, flush=True)


if __name__ == "__main__":
    main()
