"""Part ``training``: two ranks on one GPU, one of them stopped for half of the time, step over bound.

Two ranks cannot share a GPU through NCCL, so they talk through gloo; models and gradients are on the GPU.
Model, methods and bound are those of the last part of ``unequal_training.py``; the oracle of its losses is a
training in one process.
"""

from part import NotHere, Part, main

STEPS, BOUND_S = (20, 12), (0.2, 0.01)  # real, pretended; more than the first ten count


def measure(part: Part) -> None:
    import torch

    if not part.pretend and not torch.cuda.is_available():
        raise NotHere("torch finds no CUDA GPU")
    part.tried("two throttled ranks", lambda: trained(part))


def trained(part: Part) -> None:
    """Train by each method on both ranks, and add a row for each."""
    from unequal_training import by_duty_cycle

    steps, bound_s = STEPS[part.pretend], BOUND_S[part.pretend]
    for row in by_duty_cycle(steps, part.device, bound_s):
        part.row(f"{row.pop('method')}, {row.pop('fleet')}", **row)


if __name__ == "__main__":
    main(measure)
