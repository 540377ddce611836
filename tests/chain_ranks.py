"""A training with a chain for the tests: made the same by each rank, whatever its fleet."""

import copy
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from exact_ranks import BATCH, GRAIN, SEED, N, set_rate
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from training_ranks import told

from evenload.errors import EvenloadError
from evenload.merkle import Log
from evenload.training import EvenBatches, TrainingChain

EVERY = 3  # steps of a link


def make_dataset() -> TensorDataset:
    made = torch.Generator().manual_seed(5)
    return TensorDataset(torch.randn(N, 6, generator=made), torch.randint(3, (N,), generator=made))


def make_model(width: int = 4) -> tuple[nn.Module, Any]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 3))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


class Training:
    """A training of this rank, from its beginning or from what ``kept`` has of a step.

    seconds  that a sample takes on each rank, as the shares are to believe
    deed     is done before each step is trained, with this and the step's number from 1
    """

    def __init__(
        self, log: Any, saved: dict[str, Any] | None = None, *, source: Any = None, width: int = 4,
        seconds: tuple[float, ...] = (1.0,), deed: Callable[[Any, int], None] | None = None, **options: Any,
    ):  # fmt: skip
        self.dataset, self.deed = make_dataset(), deed
        self.model, self.optimizer = make_model(width)
        given = {"global_batch": BATCH, "micro_batch": GRAIN, "exact": True, "seed": SEED, "timeout_s": 60}
        self.even = EvenBatches(self.dataset if source is None else source, **given | options)
        self.kept: dict[int, dict[str, Any]] = {}
        told(self.even, lambda _: seconds[self.even._ranks.number])
        if saved is not None:
            saved = copy.deepcopy(saved)  # an optimizer goes on with the very tensors
            self.model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.even.load_state_dict(saved["even"])
        state = None if saved is None else saved["chain"]
        self.chain = TrainingChain(log, self.even, self.model, self.optimizer, every=EVERY, state=state)
        self.loader = DataLoader(self.dataset, batch_sampler=self.even)
        self.n_trained = 0 if saved is None else saved["chain"]["step"]

    def _keep(self) -> None:
        parts = {"model": self.model, "optimizer": self.optimizer, "even": self.even, "chain": self.chain}
        state = {name: {**one.state_dict()} for name, one in parts.items()}
        self.kept[self.n_trained] = copy.deepcopy(state)

    def train(self, n_steps: int) -> None:
        until = self.n_trained + n_steps
        while self.n_trained < until:
            for step in self.even.steps(self.loader, self.model):
                self.train_step(step)
                self.chain.step()
                self._keep()
                if self.n_trained == until:
                    return

    def train_step(self, step: Iterator[Any]) -> None:
        if self.deed:
            self.deed(self, self.n_trained + 1)
        for x, y in step:
            self.even.scale(cross_entropy(self.model(x), y)).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.optimizer.step()
        self.optimizer.zero_grad()
        set_rate(self.optimizer, self.n_trained)
        self.n_trained += 1

    def repeat(self, until: int | None = None) -> Any:
        return self.chain.repeat(self.loader, self.train_step, until)


def flip_bit(model: nn.Module) -> None:
    """Change the least bit of one weight."""
    weights = next(model.parameters()).data.view(torch.int32)
    weights[0, 0] ^= 1


def hand_over(folder: str) -> Callable[[Any], list[str]]:
    """What each of three ranks does: all train 8 steps and save step 5; the first two go on from there.

    Returns what a rank of each fleet was told when the fleet's last rank had changed one bit of its weights.
    """

    def run(_: Any) -> list[str]:
        torch.set_num_threads(1)
        told = [_fleet(folder, None, 8, seconds=(1e-3, 2e-3, 5e-3))]
        pair = dist.new_group([0, 1])  # torch waits for all ranks here: the checkpoint is there
        if dist.get_rank() < 2:
            saved = torch.load(Path(folder, "checkpoint"), weights_only=True)
            told.append(_fleet(folder, saved, 6, seconds=(3e-3, 1e-3), group=pair))
        return told

    return run


def _fleet(folder: str, saved: Any, n_steps: int, **options: Any) -> str:
    is_first = dist.get_rank() == 0
    made = Log(Path(folder, "chain"), origin="example.com/run") if is_first else None
    with nullcontext() if made is None else made as log:
        training = Training(log, saved, **options)
        training.train(n_steps)
        if is_first and not saved:
            torch.save(training.kept[5], Path(folder, "checkpoint"))
        if dist.get_rank() == training.even.ranks.size - 1:
            flip_bit(training.model)
        try:
            training.train(EVERY)
        except EvenloadError as error:
            return error.message
    return ""
