"""Plans that were measured, in one JSON file: valid for this model, work, machine and these versions."""

import hashlib
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from evenload._private_files import read_plain, whole_file
from evenload._terminal import log_of
from evenload._version import __version__
from evenload.clients.values.strategy import ClientPlan, Strategy
from evenload.clients.values.task import ClientTask
from evenload.errors import ConfigError

MOST_BYTES = 1 << 26
log = log_of(__name__)


def kind_of_work(tasks: Sequence[ClientTask]) -> tuple:
    """The parts of tasks that decide which engine may train them and what a step costs; not rates."""
    recipes = list({id(task.recipe): task.recipe for task in tasks}.values())
    first = recipes[0]
    return (
        (first.loss, first.objective, first.metrics, first.augment, first.precision, first.step),
        (first.batch_size, first.epochs, first.steps, first.clip is None, any(r.prox for r in recipes)),
        type(first.optimizer).__name__,
        type(first.optimizer).form([r.optimizer for r in recipes]),  # pyrefly: ignore
        any(task.correction is not None for task in tasks),
    )


class TuningCache:
    """A file of measured plans, read and written as a whole.

    A damaged file or entry counts as missing and is replaced. If the file cannot be written, strategies are
    measured again next time, and training goes on.
    """

    def __init__(self, path: str | Path, model: nn.Module):
        self._path = Path(path)
        self._model = f"{model}|{[(n, tuple(t.shape), str(t.dtype)) for n, t in model.state_dict().items()]}"

    def find(self, tasks: Sequence[ClientTask], rounds: int) -> ClientPlan | None:
        """The plan for such tasks and so many rounds, without its reasons; None if there is none."""
        entry: Any = self._read().get(self._key(tasks, rounds))
        try:
            return ClientPlan(
                Strategy.parse(entry["strategy"]), str(entry["why"]), {}, tuple(entry["probes"])
            )
        except (KeyError, TypeError, ConfigError):  # none, or not one that was written here
            return None

    def keep(self, tasks: Sequence[ClientTask], rounds: int, plan: ClientPlan) -> None:
        """Write the plan for such tasks and so many rounds."""
        page = self._read()
        page[self._key(tasks, rounds)] = {
            "strategy": str(plan.strategy),
            "why": plan.why,
            "probes": list(plan.probes),
        }
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(self._path, 0o666, is_durable=False) as file:
                file.write(json.dumps(page, indent=1).encode())
        except OSError as error:
            log.warning("strategies are measured anew next time: %s", error)

    def _read(self) -> dict:
        try:
            page = json.loads(read_plain(self._path, MOST_BYTES))
        except (OSError, ValueError, RecursionError):
            return {}
        return page if isinstance(page, dict) else {}

    def _key(self, tasks: Sequence[ClientTask], rounds: int) -> str:
        """A hash of all that measurements depend on; of clients, steps and rounds the power of two."""
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
    """The value with functions replaced by their names: their identities differ between programs."""
    if isinstance(value, tuple):
        return tuple(map(_named, value))
    return getattr(value, "__qualname__", value)
