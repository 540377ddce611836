"""FedAvg on real digits (scikit-learn's), Dirichlet(0.3) over 100 ragged clients, momentum, 20 rounds.

    python benchmarks/clients_digits.py

Serial and fused strategies train the same clients on the same batches; the table says how far apart they end.
"""

import argparse
import time

import torch
from clients_models import mlp
from record import record
from sklearn.datasets import load_digits

from evenload.clients import SGD, Recipe, Trainer, evaluate
from evenload.clients.partition import dirichlet, split
from evenload.clients.spread.equivalence_check import difference

ROUNDS = 20
RECIPE = Recipe(optimizer=SGD(lr=0.1, momentum=0.9), batch_size=10, epochs=1)
STRATEGIES = ("serial", "fused:100", "fused:32", "fused-compiled:100", "fused-compiled:32")


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    torch.set_num_threads(1)
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    is_test = torch.arange(len(y)) % 5 == 0
    parts = dirichlet(y[~is_test].numpy(), 100, 0.3, seed=0, least=1)
    data = split(x[~is_test], y[~is_test], parts)
    trainers = {name: Trainer(lambda: mlp(64, 32), strategy=name) for name in STRATEGIES}
    states = {name: t.start for name, t in trainers.items()}
    first, least = {}, {}
    for name, trainer in trainers.items():
        began = time.perf_counter()
        trainer.train(data, RECIPE)
        first[name] = time.perf_counter() - began
    for r in range(ROUNDS):
        for name, trainer in trainers.items():
            cpu = time.process_time()
            states[name] = trainer.train(data, RECIPE, start=states[name], round=r, reduce="mean").reduced
            spent = time.process_time() - cpu
            least[name] = min(spent, least.get(name, spent))
    rows = [
        {
            "strategy": name,
            "cpu per round, ms": least[name] * 1e3,
            "x serial": least["serial"] / least[name],
            "accuracy": evaluate(mlp(64, 32), state, (x[is_test], y[is_test]), RECIPE)["accuracy"],
            "apart from serial": f"{difference(state, states['serial']):.1e}",
            "first, s": first[name],
        }
        for name, state in states.items()
    ]
    sizes = sorted(len(part) for part in parts)
    record("clients_digits", rows, rounds=ROUNDS, rows_per_client=[sizes[0], sizes[50], sizes[-1]])


if __name__ == "__main__":
    main()
