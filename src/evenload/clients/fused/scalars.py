"""The numbers that enter a fused step: learning rates, momenta and so on, of each client in each step."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from evenload.clients.step.fuse import StepForm
from evenload.clients.values.schedule import Constant
from evenload.clients.values.task import ClientTask

__all__ = ["Scalars"]


class Scalars:
    """The numbers for steps of clients among ``tasks``; those that never change are made once."""

    def __init__(self, tasks: Sequence[ClientTask], form: StepForm, dtype: torch.dtype, device: str):
        self._form, self._dtype, self._device = form, dtype, device
        self._has_one_recipe = all(task.recipe is tasks[0].recipe for task in tasks)
        self._is_constant = all(isinstance(task.recipe.schedule, Constant) for task in tasks)
        self._known: dict[int, dict[str, Tensor]] = {}

    def lines(self, clients: list[tuple[ClientTask, int]], length: int, q: int) -> list[dict[str, Tensor]]:
        """For each of ``length`` steps: name -> [q].

        clients  with the steps that each has taken so far; rows beyond them repeat the first client's
        """
        if q in self._known:
            return [self._known[q]] * length
        if self._has_one_recipe and self._are_alike(clients):
            clients = clients[:1]  # one number serves all rows
        else:
            clients = [*clients, *clients[:1] * (q - len(clients))]
        tasks, steps = [task for task, _ in clients], np.array([step for _, step in clients])
        numbers = self._numbers(tasks, steps + np.arange(length)[:, None])
        is_fixed = all(values.ndim < 2 for values in numbers.values())
        wide = np.empty((1 if is_fixed else length, len(numbers), q))
        for i, values in enumerate(numbers.values()):
            wide[:, i] = values
        table = torch.from_numpy(wide).to(self._device, self._dtype)
        lines = [dict(zip(numbers, line.unbind(0), strict=True)) for line in table.unbind(0)]
        if is_fixed and self._has_one_recipe:
            self._known[q] = lines[0]
        return lines * length if is_fixed else lines

    def _are_alike(self, clients: list[tuple[ClientTask, int]]) -> bool:
        """Have all taken equally many steps, and (if the rate changes) equally many to take?"""
        return len({(step, self._is_constant or task.batches.n_steps) for task, step in clients}) == 1

    def _numbers(self, tasks: list[ClientTask], steps: np.ndarray) -> dict[str, np.ndarray]:
        """Name -> numbers that broadcast to [steps, clients]."""
        recipes = [task.recipe for task in (tasks[:1] if self._has_one_recipe else tasks)]
        optimizers = [recipe.optimizer for recipe in recipes]
        factor = np.ones(1) if self._is_constant else _factors(tasks, steps)
        numbers = optimizers[0].scalars(self._form.optimizer, optimizers, factor, steps + 1)  # pyrefly: ignore
        if self._form.prox:
            numbers["prox"] = np.array([recipe.prox for recipe in recipes])
        if recipes[0].clip is not None:
            numbers["clip"] = np.array([recipe.clip for recipe in recipes])
        return numbers


def _factors(tasks: Sequence[ClientTask], steps: np.ndarray) -> np.ndarray:
    """Factors [length, clients] of each client's learning rate in its ``steps`` (from 0)."""
    schedules = [task.recipe.schedule for task in tasks]
    sizes = [task.batches.n_steps for task in tasks]
    lines = [
        [s.factor(step, n) for s, step, n in zip(schedules, line, sizes, strict=True)]
        for line in steps.tolist()
    ]
    return np.array(lines, dtype=float)
