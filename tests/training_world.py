"""Two ranks in a world of known speeds: its clock goes by the work that is planted, and by nothing else.

Rank 1 does three times as much in a second as rank 0. Where ranks exchange something, each goes on at the
time of the one that came last. So the shares that are right are known beforehand, on any machine.
"""

import functools
import logging
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import TensorDataset

from evenload.errors import ConfigError
from evenload.training import EvenBatches

SPEEDS, N, WIDTH, BATCH, SEED = (1.0, 3.0), 132, 6, 12, 3


class World:
    """The time of one rank. ``meet``: until all have come."""

    def __init__(self, number: int):
        self.speed, self.now_s, self.busy_s, self.is_meeting = SPEEDS[number], 0.0, 0.0, False

    def now(self) -> tuple[float, int, float]:
        return self.now_s, 0, self.busy_s

    def work(self, n_samples: float) -> None:
        self.now_s += n_samples / self.speed
        self.busy_s += n_samples / self.speed

    def meet(self) -> None:
        if not self.is_meeting:
            self.is_meeting = True
            last = torch.tensor([self.now_s], dtype=torch.float64)
            dist.all_reduce(last, op=dist.ReduceOp.MAX)
            self.now_s, self.is_meeting = last.item(), False


here: list[World] = []


def exchanges_take_time() -> None:
    """Have each exchange last until all have come, in the world that is there."""
    from torch.distributed import _functional_collectives as functional

    def lasting(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def exchange(*args: Any, **kwargs: Any) -> Any:
            done = call(*args, **kwargs)
            for world in here:
                world.meet()
            return done

        return exchange

    for owner, name in ((dist.Work, "wait"), (dist, "_broadcast_coalesced"), (functional, "wait_tensor")):
        setattr(owner, name, lasting(getattr(owner, name)))


class Net(nn.Module):
    def __init__(self, *, has_buffer: bool = False, middle: nn.Module | None = None):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last = nn.Linear(WIDTH, 4), nn.Linear(4, 1)
        self.middle = middle or nn.Tanh()
        if has_buffer:
            self.register_buffer("inv_freq", torch.ones(3), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.middle(self.first(x)))


def make_dataset() -> TensorDataset:
    made = torch.Generator().manual_seed(0)
    draw = functools.partial(torch.randn, generator=made, dtype=torch.float64)
    return TensorDataset(draw(N, WIDTH), draw(N, 1))


class Exchanging(nn.Module):
    """A layer that has the ranks wait in the forward pass, by some call."""

    def __init__(self, exchange: Callable[[], Any]):
        super().__init__()
        self.exchange = exchange

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.exchange()
        return x


def begun(rank: Any, **options: Any) -> tuple[World, EvenBatches]:
    here[:] = [World(rank.number)]
    even = EvenBatches(make_dataset(), global_batch=BATCH, seed=SEED, **options)
    even._clock.now = here[0].now
    return here[0], even


def meet_after_backward(loss: torch.Tensor, world: World) -> None:
    """The exchange of gradients by DDP, which is not Python's."""
    loss.register_hook(lambda _: torch.autograd.Variable._execution_engine.queue_callback(world.meet))


def trained(
    rank: Any,
    model: nn.Module,
    *,
    where: str = "before",
    is_held: bool = True,
    after: Callable[[EvenBatches], Any] = lambda _: None,
) -> dict[str, Any]:
    """An epoch. ``where``: the work is done before or after the forward pass, and ``after`` it is called."""
    world, even = begun(rank)
    if not is_held:
        even._clock.hold = lambda: False  # type: ignore[method-assign]
    even.watch(model)
    optimizer, counts = torch.optim.SGD(model.parameters(), lr=0.1), []
    for x, y in even.loader(make_dataset()):
        counts.append(len(x))
        world.work(len(x) if where == "before" else 0)
        out = model(x)
        world.work(len(x) if where == "after" else 0)
        after(even)
        loss = nn.functional.mse_loss(out, y)
        meet_after_backward(loss, world)
        even.scale(loss).backward()
        optimizer.step()
        optimizer.zero_grad()
    even.close()
    return found(even, model, counts)


def found(even: EvenBatches, model: nn.Module, counts: list[int]) -> dict[str, Any]:
    here.clear()
    state = {
        name: getattr(one, "full_tensor", lambda one=one: one)() for name, one in model.state_dict().items()
    }
    return {"shares": even.shares.counts, "counts": counts, "state": state}


def ddp(has_buffer: bool = False, middle: nn.Module | None = None, **options: Any) -> DDP:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch 2.13 deprecates ``broadcast_buffers``
        return DDP(Net(has_buffer=has_buffer, middle=middle).double(), **options)


def functional_sum() -> torch.Tensor:
    from torch.distributed._functional_collectives import all_reduce

    return all_reduce(torch.ones(2), "sum", dist.group.WORLD) + 1


def by_the_store(rank: Any) -> Callable[[], None]:
    """Ranks wait for one another by keys of the store: no exchange that anybody sees."""
    store, calls = dist.PrefixStore("own", dist.distributed_c10d._get_default_store()), [0]

    def exchange() -> None:
        calls[0] += 1
        store.set(f"{calls[0]}/{rank.number}", "")
        store.wait([f"{calls[0]}/{other}" for other in range(rank.size)])
        for world in here:
            world.meet()

    return exchange


def said(make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What is found, and the warnings meanwhile."""
    texts: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: texts.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("evenload.training").addHandler(handler)
    made = make()
    logging.getLogger("evenload.training").removeHandler(handler)
    return {**made, "texts": texts}


def exchanged_apart(exchange: Callable[[], None]) -> Callable[[EvenBatches], None]:
    def after(even: EvenBatches) -> None:
        with even.waiting():
            exchange()

    return after


def accelerated(rank: Any, n_accumulated: int = 2) -> dict[str, Any]:
    """Two epochs in a loop of accelerate's, which steps with every second batch and an epoch's last."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=n_accumulated)
    model = Net().double()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    world, even = begun(rank)
    loader, counts, is_step = accelerator.prepare(even.loader(make_dataset())), [], []
    for _ in range(2):
        for x, y in loader:
            with accelerator.accumulate(model):
                counts.append(len(x))
                world.work(len(x))
                loss = nn.functional.mse_loss(model(x), y)
                if accelerator.sync_gradients:
                    meet_after_backward(loss, world)
                accelerator.backward(even.scale(loss))
                optimizer.step()
                optimizer.zero_grad()
                is_step.append(accelerator.sync_gradients)
    even.close()
    plain = accelerator.prepare(torch.utils.data.DataLoader(make_dataset(), BATCH // rank.size))
    is_plain_step = []
    for _ in range(2):
        for _ in plain:
            with accelerator.accumulate(model):
                is_plain_step.append(accelerator.sync_gradients)
    return {**found(even, accelerator.unwrap_model(model), counts), "steps": (is_step, is_plain_step)}


class SyncNorm(nn.Module):
    """What torch's SyncBatchNorm calls on a GPU, with its exchange, forward and backward."""

    def __init__(self, n_channels: int):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(n_channels)), nn.Parameter(torch.zeros(n_channels))
        self.register_buffer("running_mean", torch.zeros(n_channels))
        self.register_buffer("running_var", torch.ones(n_channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch.nn.modules._functions import SyncBatchNorm

        given = self.weight, self.bias, self.running_mean, self.running_var, 1e-5, 0.1
        return SyncBatchNorm.apply(x, *given, dist.group.WORLD, dist.get_world_size())


def refused(rank: Any) -> str:
    """What SyncBatchNorm is told of an epoch whose last batch has a sample for one rank only."""
    even, model = EvenBatches(range(BATCH + 1), global_batch=BATCH), ddp(middle=SyncNorm(4))
    next(iter(even))
    try:
        even.scale(model(torch.ones(2, WIDTH).double()).mean())
    except ConfigError as error:
        return str(error)
    return "no error"


def kernels_of_the_cpu() -> Any:
    """The five kernels of SyncBatchNorm that torch has for GPUs only, for [samples, channels]."""

    def stats(x: torch.Tensor, eps: float) -> Any:
        return x.mean(0), (x.var(0, correction=0) + eps).rsqrt()

    def gathered(
        x: Any, mean: Any, invstd: Any, of: Any, var_of: Any, momentum: float, eps: float, n: Any
    ) -> Any:
        share = (n / n.sum())[:, None]
        middle = (share * mean).sum(0)
        var = (share * (invstd**-2 - eps + (mean - middle) ** 2)).sum(0)
        of.lerp_(middle, momentum)
        var_of.lerp_(var * n.sum() / (n.sum() - 1), momentum)
        return middle, (var + eps).rsqrt()

    def normalised(x: Any, weight: Any, bias: Any, mean: Any, invstd: Any, eps: float) -> Any:
        return (x - mean) * invstd * weight + bias

    def reduced(dy: Any, x: Any, mean: Any, invstd: Any, weight: Any, *_: bool) -> Any:
        by = (dy * (x - mean)).sum(0)
        return dy.sum(0), by, by * invstd, dy.sum(0)

    def back(dy: Any, x: Any, mean: Any, invstd: Any, weight: Any, sum_dy: Any, by: Any, n: Any) -> Any:
        return (dy - (sum_dy + (x - mean) * invstd**2 * by) / n.sum()) * invstd * weight

    library = torch.library.Library("aten", "IMPL")
    library.impl("batch_norm_stats", stats, "CPU")
    library.impl("batch_norm_gather_stats_with_counts", gathered, "CPU")
    library.impl("batch_norm_elemt", normalised, "CPU")
    library.impl("batch_norm_backward_reduce", reduced, "CPU")
    library.impl("batch_norm_backward_elemt", back, "CPU")
    return library


def compiled(rank: Any) -> dict[str, Any]:
    """A compiled model whose buffers are broadcast, and what torch's compiler says of code it cannot read."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = trained(rank, torch.compile(ddp(has_buffer=True), backend="eager"))  # type: ignore[arg-type]
    return {**made, "texts": [str(one.message) for one in caught if "trace" in str(one.message)]}


def sharded() -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, mesh = Net().double(), init_device_mesh("cpu", (len(SPEEDS),))
    for layer in (model.first, model.last):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def everything(rank: Any) -> dict[str, Any]:
    torch.set_num_threads(1)
    exchanges_take_time()
    kernels, unseen = kernels_of_the_cpu(), by_the_store(rank)
    found = {
        "no exchange": trained(rank, ddp()),
        "buffers, clock goes on": trained(rank, ddp(has_buffer=True), is_held=False),
        "buffers": trained(rank, ddp(has_buffer=True)),
        "no broadcast": trained(rank, ddp(has_buffer=True, broadcast_buffers=False)),
        "metrics": trained(rank, ddp(), after=lambda _: dist.all_reduce(torch.ones(2))),
        "functional": trained(rank, ddp(), where="after", after=lambda _: functional_sum()),
        "compiled": compiled(rank),
        "FSDP2": trained(rank, sharded()),
        "SyncBatchNorm": trained(rank, ddp(middle=SyncNorm(4))),
        "not seen": said(lambda: trained(rank, ddp(middle=Exchanging(unseen)))),
        "waiting": said(lambda: trained(rank, ddp(), after=exchanged_apart(unseen))),
        "accelerate": accelerated(rank),
        "refused": refused(rank),
    }
    del kernels
    return found
