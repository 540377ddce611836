"""What each rank of the tests does: it trains in fleets and with shares that change, and says its weights."""

import hashlib
import io
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from training_ranks import told

from evenload.training import EvenBatches
from evenload.training.passes.grain_gradient import digest_of

N, GRAIN, BATCH, N_STEPS, N_CLASSES, SEED = 45, 2, 12, 11, 5, 7
PER_EPOCH = 4  # steps, of which the last has a batch of 9, and a grain of 1


class Attention(nn.Module):
    """A small transformer over 5 tokens; dropout draws from torch's generator."""

    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.inward = nn.Linear(4, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=True)
        self.outward = nn.Linear(8, N_CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outward(self.block(self.inward(x.view(-1, 5, 4))).mean(1))


def make(kind: str) -> tuple[nn.Module, Any]:
    """The model and the optimizer of a kind: ``"mlp SGD float32"``."""
    shape, how, dtype = kind.split()
    torch.manual_seed(3)
    model: nn.Module
    if shape == "mlp":
        model = nn.Sequential(nn.Linear(20, 12), nn.Tanh(), nn.Linear(12, N_CLASSES))
    elif shape == "conv":
        layers = nn.Unflatten(1, (1, 4, 5)), nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten()
        model = nn.Sequential(*layers, nn.Linear(24, N_CLASSES))
    else:
        model = Attention(0.1 if shape == "dropout" else 0.0)
    model.to(getattr(torch, dtype))
    if how == "SGD":
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def make_dataset(kind: str) -> TensorDataset:
    made = torch.Generator().manual_seed(5)
    x = torch.randn(N, 20, generator=made).to(getattr(torch, kind.split()[2]))
    return TensorDataset(x, torch.randint(N_CLASSES, (N,), generator=made), torch.arange(N))


def n_tokens(which: torch.Tensor) -> torch.Tensor:
    return 1 + which % 4


def loss_sum(model: nn.Module, x: torch.Tensor, y: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
    """The loss of a grain, a sum over its tokens."""
    return (cross_entropy(model(x), y, reduction="none") * n_tokens(which)).sum()


def set_rate(optimizer: Any, step: int) -> None:
    """Let the rate fall and rise, so that weights still move after a thousand steps."""
    for one in optimizer.param_groups:
        one["lr"] *= {3: 0.9, 7: 1.1}.get(step % 8, 1.0)


def steps_by_hand(
    model: nn.Module, optimizer: Any, loss_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> Iterator[torch.Tensor]:
    """Train in a plain loop without evenload, last grain first; gradients are summed as whole numbers.

    ``loss_of`` a grain of a batch. Yields the samples of each step when it was trained.
    """
    parameters = list(model.parameters())
    for number in range(N_STEPS):
        epoch, first = number // PER_EPOCH, number % PER_EPOCH * BATCH
        order = torch.randperm(N, generator=torch.Generator().manual_seed(SEED + epoch))
        batch = order[first : first + BATCH]
        sums = [[0] * one.numel() for one in parameters]
        for at in reversed(range(0, len(batch), GRAIN)):
            drawn = hashlib.sha256(f"{SEED}/{epoch}/{first + at}".encode()).digest()[:7]
            torch.manual_seed(int.from_bytes(drawn, "big"))
            loss = loss_of(batch[at : at + GRAIN], batch)
            for own, gradient in zip(sums, torch.autograd.grad(loss, parameters), strict=True):
                for i, one in enumerate(gradient.flatten().tolist()):
                    own[i] += round(one * 2.0**64)  # times a power of two: nothing else rounds
        for one, numbers in zip(parameters, sums, strict=True):
            exact = [n / 2**64 for n in numbers]  # Python rounds a quotient once
            one.grad = torch.tensor(exact, dtype=torch.float64).to(one.dtype).view_as(one)
        nn.utils.clip_grad_norm_(parameters, 0.5)
        optimizer.step()
        set_rate(optimizer, number)
        yield batch


def by_hand(kind: str) -> str:
    """The digest of the weights that ``steps_by_hand`` ends with."""
    torch.set_num_threads(1)
    (model, optimizer), dataset = make(kind), make_dataset(kind)

    def loss_of(grain: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        return loss_sum(model, *dataset[grain]) * (1 / int(n_tokens(batch).sum()))

    list(steps_by_hand(model, optimizer, loss_of))
    return digest_of(model)


class Training:
    """A training that any fleet can go on with, from a checkpoint."""

    def __init__(self, kind: str, group: Any, saved: bytes | None, is_wrapped: bool, speeds: int):
        self.model, self.optimizer = make(kind)
        dataset = make_dataset(kind)
        self.even = EvenBatches(
            dataset, global_batch=BATCH, micro_batch=GRAIN, exact=True, seed=SEED, group=group, timeout_s=60
        )
        told(self.even, _random_speeds(speeds, self.even._ranks.number))
        self.step = 0
        if saved is not None:
            state = torch.load(io.BytesIO(saved), weights_only=True)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.even.load_state_dict(state["even"])
            self.step = state["step"]
        self.wrapped = DDP(self.model, process_group=group) if is_wrapped else self.model
        self.loader = DataLoader(dataset, batch_sampler=self.even)
        self.after_step: Callable[[], None] = lambda: None

    def save(self) -> bytes:
        file = io.BytesIO()
        parts = {"model": self.model, "optimizer": self.optimizer, "even": self.even}
        torch.save({**{name: one.state_dict() for name, one in parts.items()}, "step": self.step}, file)
        return file.getvalue()

    def train(self, n_steps: int) -> None:
        until = self.step + n_steps
        while self.step < until:
            self._epoch(until)

    def _epoch(self, until: int) -> None:
        for step in self.even.steps(self.loader, self.wrapped):
            self._train_step(step)
            self.step += 1
            self.after_step()
            if self.step == until:
                return

    def _train_step(self, step: Iterator[Any]) -> None:
        total = None
        for x, y, which in step:
            one = self.even.coming(1)[0]
            if total is None:  # a rank knows the order, and so the tokens of its share
                total = self.even.total(float(self._tokens(one)))
            loss = loss_sum(self.wrapped, x, y, which)
            self.even.scale(loss, weight=n_tokens(which).sum(), total=total, reduction="sum").backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.optimizer.step()
        self.optimizer.zero_grad()
        set_rate(self.optimizer, self.step)

    def _tokens(self, one: Any) -> int:
        epoch, n_trained = self.even._at.place
        order = self.even._order.of(epoch)
        first = n_trained + one.place
        return int(n_tokens(torch.tensor(order[first : first + one.n_step])).sum())


def _random_speeds(speeds: int, rank: int) -> Callable[[int], float]:
    """Other random ones every two steps."""

    def sample_s(number: int) -> float:
        return random.Random(1000 * speeds + 10 * (number // 2) + rank).choice([1e-3, 2e-3, 5e-3])

    return sample_s


def fleets(kind: str, seed: int, rank: int, groups: dict[int, Any]) -> str:
    """Train in fleets of random sizes, each from where the last was saved; the digest of the weights."""
    drawn = random.Random(f"{kind} {seed}")
    saved: list[bytes | None] = [None]
    step, found = 0, ""
    while step < N_STEPS:
        n_ranks, n_steps = drawn.choice(list(groups)), min(drawn.randint(1, 4), N_STEPS - step)
        n_lost, is_wrapped = drawn.randint(0, 2), drawn.random() < 0.5 and n_ranks > 1
        step += n_steps
        if rank < n_ranks:
            training = Training(kind, groups[n_ranks], saved[0], is_wrapped, drawn.randrange(100))
            training.train(n_steps)
            saved, found = [training.save()], digest_of(training.model)
            training.train(n_lost)  # after the checkpoint: lost with the fleet
        else:
            drawn.randrange(100)
            if n_ranks > 1:
                _stand_in(rank)
        dist.broadcast_object_list(saved, src=0)
    return found


def _stand_in(rank: int) -> None:
    """Make a group of this rank alone: torch names groups by how many a rank has, so all have as many."""
    dist.new_group([rank], backend="gloo", use_local_synchronization=True)


def everything(kinds: list[str], n_seeds: int) -> Callable[[Any], dict[str, list[str]]]:
    def run(rank: Any) -> dict[str, list[str]]:
        torch.set_num_threads(1)
        sizes = range(1, dist.get_world_size() + 1)
        groups, number = {}, dist.get_rank()
        for n in sizes:
            groups[n] = dist.new_group(list(range(n)), backend="gloo")
            if number >= n:
                _stand_in(number)
        return {kind: [fleets(kind, seed, number, groups) for seed in range(n_seeds)] for kind in kinds}

    return run
