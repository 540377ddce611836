"""A sweep of learning rates and momenta as one fused run: every "client" is one setting on the same data.

python examples/sweep/sweep.py
"""

import argparse
import itertools

import digits

from evenload.clients import SGD, Recipe, evaluate_each, train

RATES, MOMENTA = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0), (0.0, 0.5, 0.9)


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    data, test = digits.halves()
    settings = list(itertools.product(RATES, MOMENTA))
    recipes = [Recipe(optimizer=SGD(lr, momentum=m), batch_size=32, epochs=5) for lr, m in settings]
    run = train(digits.model, [data] * len(settings), recipes, strategy="fused:18", seed=1)
    scores = evaluate_each(digits.model(), run.states, [test] * len(settings), recipes[0])
    print("rate     " + "".join(f"m={m:<6}" for m in MOMENTA))
    for lr in RATES:
        line = [
            f"{s['accuracy']:.3f}   " for (rate, _), s in zip(settings, scores, strict=True) if rate == lr
        ]
        print(f"{lr:<9}" + "".join(line).rstrip())
    best = max(range(len(settings)), key=lambda i: scores[i]["accuracy"])
    print(f"best: rate {settings[best][0]}, momentum {settings[best][1]}")


if __name__ == "__main__":
    main()
