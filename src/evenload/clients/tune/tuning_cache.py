"""What the tuner has found, in one JSON file: valid for this model, work, machine and these versions."""

import hashlib
import json
import logging
import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from evenload._version import __version__
from evenload.clients.tune.tuner import Verdict
from evenload.clients.values.strategy import Strategy
from evenload.clients.values.task import Task
from evenload.errors import ConfigError

__all__ = ["TuningCache", "kind_of_work"]

log = logging.getLogger(__name__)


def kind_of_work(tasks: Sequence[Task]) -> tuple:
    """What of tasks decides which engine may train them and what a step costs; rates and the like do not."""
    recipes = list({id(task.recipe): task.recipe for task in tasks}.values())
    first = recipes[0]
    return (
        (first.loss, first.metrics, first.augment, first.precision, first.step),
        (first.batch_size, first.epochs, first.steps, first.clip is None, any(r.prox for r in recipes)),
        type(first.optimizer).__name__,
        type(first.optimizer).form([r.optimizer for r in recipes]),  # pyright: ignore
        any(task.correction is not None for task in tasks),
    )


class TuningCache:
    """``path`` is read and written as a whole. A damaged file counts as empty and is replaced, and so is a
    damaged entry; one that cannot be written costs measuring again, and no training."""

    def __init__(self, path: str | Path, model: nn.Module):
        self._path = Path(path)
        self._model = f"{model}|{[(n, tuple(t.shape), str(t.dtype)) for n, t in model.state_dict().items()]}"

    def find(self, tasks: Sequence[Task], rounds: int) -> Verdict | None:
        entry: Any = self._read().get(self._key(tasks, rounds))
        try:
            return Verdict(Strategy.parse(entry["strategy"]), str(entry["why"]), {}, tuple(entry["probes"]))
        except (KeyError, TypeError, ConfigError):  # none, or not one that was written here
            return None

    def keep(self, tasks: Sequence[Task], rounds: int, verdict: Verdict) -> None:
        page = self._read()
        page[self._key(tasks, rounds)] = {
            "strategy": str(verdict.strategy),
            "why": verdict.why,
            "probes": list(verdict.probes),
        }
        fresh = self._path.with_suffix(f".{os.getpid()}.tmp")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            fresh.write_text(json.dumps(page, indent=1), encoding="utf-8")
            fresh.replace(self._path)
        except OSError as error:
            log.warning("strategies are measured anew next time: %s", error)
            with suppress(OSError):
                fresh.unlink(missing_ok=True)

    def _read(self) -> dict:
        try:
            page = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return page if isinstance(page, dict) else {}

    def _key(self, tasks: Sequence[Task], rounds: int) -> str:
        """Numbers of clients, steps and rounds count by their power of two: no single one decides."""
        facts = (
            self._model,
            _named(kind_of_work(tasks)),
            str(tasks[0].rows.kind),
            len(tasks).bit_length(),
            sum(task.batches.n_steps for task in tasks).bit_length(),
            rounds.bit_length(),
            (platform.machine(), platform.processor(), len(os.sched_getaffinity(0))),
            [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
            (torch.__version__, platform.python_version(), __version__),
        )
        return hashlib.blake2b(repr(facts).encode(), digest_size=16).hexdigest()


def _named(value: Any) -> Any:
    """Functions by their names: they are others in another program."""
    if isinstance(value, tuple):
        return tuple(map(_named, value))
    return getattr(value, "__qualname__", value)
