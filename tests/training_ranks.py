"""What each rank of the tests does: it trains with shares that change, and says how far gradients are off."""

import functools
import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

from evenload.errors import EvenloadError
from evenload.training import EvenBatches, TrainingRecord
from evenload.training.passes.step_clock import MeasuredStep

N, WIDTH, BATCH = 50, 6, 16  # the last batch has 2 samples: fewer than ranks
PER_SAMPLE_S = [[1e-3, 2e-3, 4e-3], [4e-3, 1e-3, 1e-3], [1e-3, 1e-3, 9e-3]]


def make_dataset(seed: int = 0) -> TensorDataset:
    made = torch.Generator().manual_seed(seed)
    x = torch.randn(N, WIDTH, generator=made, dtype=torch.float64)
    return TensorDataset(torch.arange(N), x, torch.randn(N, 1, generator=made, dtype=torch.float64))


def make_model() -> torch.nn.Module:
    torch.manual_seed(1)
    layers = torch.nn.Linear(WIDTH, 7), torch.nn.Tanh(), torch.nn.Linear(7, 7), torch.nn.Tanh()
    return torch.nn.Sequential(*layers, torch.nn.Linear(7, 1)).double()


def n_tokens(which: torch.Tensor) -> torch.Tensor:
    """Tokens of each sample: unlike for each."""
    return 1 + which % 5


def told(even: EvenBatches, sample_s: Callable[[int], float]) -> None:
    """Have a sample of this rank take ``sample_s`` of the step's number; nothing is timed."""
    measured = even._clock.measured

    def instead() -> MeasuredStep | None:
        found = measured()
        return found and replace(found, seconds=max(found.n_samples, 1) * sample_s(found.number))

    even._clock.measured = instead  # type: ignore[method-assign]


def changing(rank: int) -> Callable[[int], float]:
    """The speeds of PER_SAMPLE_S, others every three steps."""
    return lambda number: PER_SAMPLE_S[number // 3 % len(PER_SAMPLE_S)][rank % 3]


def whole_gradient(which: list[int], kind: str) -> list[torch.Tensor]:
    """The gradient of a global batch in one process."""
    model, dataset = make_model(), make_dataset()
    at, x, y = dataset[which]
    losses = (model(x) - y).square()
    if kind == "tokens":
        weights = n_tokens(at).double()[:, None]
        (losses * weights).sum().div(weights.sum()).backward()
    else:
        losses.mean().backward()
    return [one.grad.clone() for one in model.parameters()]


def loss_of(even: EvenBatches, model: Any, batch: Any, kind: str, total: float | None = None) -> torch.Tensor:
    at, x, y = batch
    losses = (model(x) - y).square()
    if kind == "tokens":
        weights = n_tokens(at).double()[:, None]
        n = n_tokens(at).sum()  # whole, as tokens are
        return even.scale((losses * weights).sum() / n, weight=n, total=total)
    if kind == "sum":
        return even.scale(losses.sum(), reduction="sum")
    return even.scale(losses.mean())


def off(model: Any, which: list[int], kind: str) -> float:
    """How far the gradient that all ranks have is from that of the whole batch."""
    found = [
        one.grad.full_tensor() if hasattr(one.grad, "full_tensor") else one.grad for one in model.parameters()
    ]
    wanted = whole_gradient(which, kind)
    return max(float((a - b).abs().max()) for a, b in zip(found, wanted, strict=True))


def ahead(loader: Any, n: int) -> Any:
    """Batches, of which ``n`` more are asked for before they are needed."""
    waiting: list[Any] = []
    for one in loader:
        waiting.append(one)
        if len(waiting) > n:
            yield waiting.pop(0)
    yield from waiting


def order_of(epoch: int) -> list[int]:
    made = torch.Generator().manual_seed(5 + epoch)
    return torch.randperm(N, generator=made).tolist()


def shard(model: torch.nn.Module, size: int) -> torch.nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (size,))
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def trained(
    rank: Any, kind: str, *, prefetch: int = 0, is_sharded: bool = False, micro: int | None = None
) -> dict:
    """Two epochs; returns the largest error, and each step's counts."""
    dataset = make_dataset()
    events: list[Any] = []
    record = TrainingRecord(None, ["cpu"] * rank.size, rank=rank.number, sink=events.append)
    even = EvenBatches(
        dataset, global_batch=BATCH, seed=5, micro_batch=micro, most=None if micro else 12, record=record
    )
    told(even, changing(rank.number))
    model = shard(make_model(), rank.size) if is_sharded else DDP(make_model())
    even.watch(model)
    worst, counts, states = 0.0, [], []
    for epoch in range(2):
        even.set_epoch(epoch)
        order = order_of(epoch)
        loader = ahead(even.loader(dataset), prefetch if micro is None else 0)
        rounds = even.steps(loader, model) if micro else ([one] for one in loader)
        for number, step in enumerate(rounds):
            which = order[number * BATCH : (number + 1) * BATCH]
            n_mine = 0
            for batch in step:
                n_mine += even._queue[0].n_samples
                loss_of(even, model, batch, kind).backward()
            worst = max(worst, off(model, which, kind))
            counts.append(n_mine)
            states.append(json.loads(json.dumps(even.state_dict())))
            model.zero_grad()
    even.close()
    record.close()
    last = even.last
    return {
        "worst": worst,
        "counts": counts,
        "states": states,
        "events": events,
        "last": last and (last.number, last.counts, last.ratio),
        "certificate": last and last.certificate(),
    }


def real_times(rank: Any) -> tuple:
    """A few steps by the real clock."""
    dataset = make_dataset()
    even = EvenBatches(dataset, global_batch=BATCH, drop_last=True)
    model = DDP(make_model())
    for _, x, y in DataLoader(dataset, batch_sampler=even):
        even.scale((model(x) - y).square().mean()).backward()
    even.close()
    return even.last.number, even.last.counts, even.last.seconds, even.shares.counts


def said(make: Any) -> str:
    """The error of a call."""
    try:
        make()
    except EvenloadError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


class Endless:
    def __iter__(self):
        return iter(range(10))


class Own:
    """A sampler that is another on each rank."""

    def __init__(self, seed):
        self.order = random.Random(seed).sample(range(40), 40)

    def __iter__(self):
        return iter(self.order)

    def __len__(self):
        return len(self.order)


class Short(Own):
    def __len__(self):
        return 41


def weighed(even: EvenBatches, weight: float) -> None:
    next(iter(even))
    even.total(weight)


def static_graph() -> DDP:
    return DDP(make_model(), static_graph=True)


def scaled_by_total(even: EvenBatches) -> None:
    next(iter(even))
    even.scale(torch.zeros(()), total=3.0)


def one_step(even: EvenBatches, model: Any, dataset: Any) -> None:
    for _, x, y in DataLoader(dataset, batch_sampler=even):
        even.scale((model(x) - y).square().mean()).backward()
        return


def refusals(rank: Any) -> list[tuple[str, str]]:
    """What each call has to say, and says."""
    dataset, number = make_dataset(), rank.number
    first, last = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, 1)

    def with_norm(shape: tuple[int, ...], norm: torch.nn.Module) -> torch.nn.Module:
        inside = torch.nn.Unflatten(1, shape), norm, torch.nn.Flatten()
        return torch.nn.Sequential(first, *inside, last).double()

    norm = with_norm((2, 3, 1), torch.nn.BatchNorm2d(2))
    alone = with_norm((2, 3), torch.nn.InstanceNorm1d(2))
    made = functools.partial(EvenBatches, dataset)
    plain = {"global_batch": BATCH}
    calls = [
        ("rank 0 has global_batch=16, rank 2 has 17", lambda: made(global_batch=16 + (number == 2))),
        ("2 samples are fewer than 3 ranks", lambda: EvenBatches(list(range(2)), global_batch=2)),
        ("use a global batch from 3", lambda: made(global_batch=2)),
        ("has no length", lambda: EvenBatches(Endless(), **plain)),
        ("on rank 0: global_batch is -3", lambda: made(global_batch=16 if number else -3)),
        ("use a global batch from 3 to 30", lambda: made(global_batch=40, most=10)),
        ("in steps of 7", lambda: made(global_batch=40, micro_batch=7)),
        ("seed it alike", lambda: iter(EvenBatches(Own(number), **plain))),
        ("no error", lambda: iter(EvenBatches(Own(0), **plain))),
        ("convert_sync_batchnorm", lambda: one_step(made(**plain), DDP(norm), dataset)),
        ("convert_sync_batchnorm", lambda: made(**plain).watch(norm)),
        ("convert_sync_batchnorm", lambda: one_step(made(global_batch=4), DDP(norm), dataset)),
        ("no error", lambda: one_step(made(**plain), DDP(alone), dataset)),
        ("even.watch", lambda: one_step(made(**plain), shard(make_model(), rank.size), dataset)),
        ("even.steps", lambda: one_step(made(micro_batch=2, **plain), make_model(), dataset)),
        (
            "neither DistributedDataParallel",
            lambda: next(made(micro_batch=2, **plain).steps([], make_model())),
        ),
        ("rank 1 has weight nan", lambda: weighed(made(**plain), math.nan if number == 1 else 1.0)),
        ("are 0", lambda: weighed(made(**plain), 0)),
        ("global_batch is", lambda: made(global_batch="\u00fc" * 5000)),
        ("said 41 samples, and yields 40", lambda: iter(EvenBatches(Short(number), **plain))),
        ("DataLoader has no samples by number", lambda: EvenBatches(DataLoader(dataset), **plain)),  # type: ignore[arg-type]
        ("leave static_graph out", lambda: next(made(micro_batch=2, **plain).steps([], static_graph()))),
        ("total is given, and no weight", lambda: scaled_by_total(made(**plain))),
        ("no batch to train", lambda: made(**plain).skip()),
        ("leaves out no micro-batch", lambda: made(micro_batch=2, **plain).skip()),
        ("no batch to train", lambda: made(**plain).scale(torch.zeros(()))),
        ("the state is of 7 samples", lambda: made(**plain).load_state_dict({"version": 1, "n_samples": 7})),
    ]
    return [(says, said(call)) for says, call in calls]


def stalled(rank: Any) -> str:
    """What this rank says while rank 2 does not go on; that one goes on when both others have said it."""
    texts: list[str] = []
    store = dist.PrefixStore("test", dist.distributed_c10d._get_default_store())
    dataset, loss = make_dataset(), torch.nn.Parameter(torch.ones(()))
    even = EvenBatches(dataset, global_batch=BATCH, stall_s=0.2)

    def tell(text: str) -> None:
        texts.append(text)
        if "2" in text.partition(" not done")[0]:
            store.set(f"told {rank.number}", "")

    if even._stalls:
        even._stalls._tell = tell
    next(iter(even))
    scaled = even.scale(Exchange.apply(loss))
    if rank.number == 2:
        store.wait(["told 0", "told 1"])
    scaled.backward()
    return " | ".join(texts)


class Exchange(torch.autograd.Function):
    """Waits for all ranks at the end of the backward pass, as DDP does."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        torch.autograd.Variable._execution_engine.queue_callback(dist.barrier)
        return grad


def everything(rank: Any) -> dict[str, Any]:
    torch.set_num_threads(1)
    found = {
        "mean": trained(rank, "mean"),
        "prefetched": trained(rank, "mean", prefetch=2 * rank.number),
        "sum": trained(rank, "sum"),
        "tokens": trained(rank, "tokens", prefetch=1),
        "micro": trained(rank, "mean", micro=2),
        "FSDP2": trained(rank, "mean", is_sharded=True),
        "FSDP2 micro": trained(rank, "mean", is_sharded=True, micro=2),
        "real": real_times(rank),
        "stalled": stalled(rank),
        "refusals": refusals(rank),
        "does not come": said(
            lambda: rank.number == 2 or EvenBatches(make_dataset(), global_batch=BATCH, timeout_s=1.0)
        ),
    }
    dist.barrier()
    return found
