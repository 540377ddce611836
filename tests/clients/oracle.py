"""Training as a tutorial of torch does it, on the user's own objects. Imports nothing of evenload."""

import random

import numpy as np
import torch
from torch.utils.data import DataLoader


def seed_all(seed):
    torch.default_generator.manual_seed(seed)  # of the CPU: no tracebacks for GPUs that nobody uses
    np.random.seed(seed % 2**32)
    random.seed(seed)


def train_plainly(model, dataset, loss, optimizer, *, epochs=2, batch_size=4, seeds=(0, 0), **loop):
    """Train ``model`` in place; returns the loss of each step.

    optimizer  the model -> its optimiser;  seeds: while rows are read, while the model is trained
    loop       step=fn(loss, model, optimizer, x, y) in place of the rest; or after_backward=fn(model),
               schedule=fn(optimizer) -> scheduler stepped after each step,
               stop=fn(losses of each epoch so far) -> bool, loader: options of the DataLoader
    """
    seed_all(seeds[0])
    loader = DataLoader(dataset, batch_size=batch_size, **loop.get("loader", {}))
    read = [list(loader) for _ in range(epochs)]
    seed_all(seeds[1])
    optimizer = optimizer(model)
    scheduler = loop["schedule"](optimizer) if "schedule" in loop else None
    losses, model = [], model.train()
    for batches in read:
        losses.append([])
        for batch in batches:
            if "step" in loop:
                losses[-1].append(loop["step"](loss, model, optimizer, *batch).item())
                continue
            optimizer.zero_grad()
            x, y = batch if isinstance(batch, list | tuple) else (batch, None)
            value = loss(model(x), y) if y is not None else loss(model, x)
            value.backward()
            if "after_backward" in loop:
                loop["after_backward"](model)
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            losses[-1].append(value.item())
        if "stop" in loop and loop["stop"](losses):
            break
    return [value for epoch in losses for value in epoch]
