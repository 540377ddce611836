"""Train on unequal devices, so that all of them are busy to the end of every step.

    python examples/unequal-training/train.py               # every GPU; without any, two unequal CPU ranks
    python examples/unequal-training/train.py --task pictures --speeds 1,1,2,4
    torchrun --nproc-per-node 2 examples/unequal-training/train.py

A CPU rank of --speeds is a model of a device: it computes its gradients, and waits where the last of them
would be ready until the time has passed that a device of its speed takes. On GPUs nothing waits.
"""

import argparse
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).resolve().parent))
from tasks import TASKS, loss_of

from evenload.training import EvenBatches, TrainingRecord

STEP_S = 0.1  # of a step if all modelled devices are busy to its end


class SlowDevice:
    """A model of a device: gradients are not ready before ``n x sample_s`` seconds have passed."""

    def __init__(self, sample_s: float, first: nn.Module) -> None:
        self._sample_s, self._until = sample_s, 0.0
        first.register_forward_hook(lambda _module, _given, out: Wait.apply(out, self))

    def begin(self, n_samples: int) -> None:
        self._until = time.monotonic() + n_samples * self._sample_s

    def wait(self) -> None:
        time.sleep(max(0.0, self._until - time.monotonic()))


class Wait(torch.autograd.Function):
    """Behind the first layer: its gradient is the last of a backward pass."""

    @staticmethod
    def forward(ctx, given, device):
        ctx.device = device
        return given.view_as(given)

    @staticmethod
    def backward(ctx, gradient):
        ctx.device.wait()
        return gradient, None


def train(device: torch.device, given: argparse.Namespace) -> list[float]:
    """Train as one rank of an initialised process group; returns the losses of all steps."""
    torch.manual_seed(0)
    make_model, make_dataset = TASKS[given.task]
    dataset, model = make_dataset(), make_model().to(device)
    speed, slow = given.speeds[dist.get_rank()] if given.speeds else None, None
    if speed:
        sample_s = STEP_S * sum(given.speeds) / given.batch / speed
        slow = SlowDevice(sample_s, next(model.children()))
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    with TrainingRecord(given.out, names(device, speed), rank=dist.get_rank(), name=given.task) as record:
        even = EvenBatches(dataset, global_batch=given.batch, record=record)
        loader = DataLoader(dataset, batch_sampler=even)
        while len(losses) < given.steps:
            for inputs, answers in loader:
                if slow:
                    slow.begin(len(inputs))
                loss = loss_of(parallel(inputs.to(device)), answers.to(device))
                optimizer.zero_grad()
                even.scale(loss).backward()
                optimizer.step()
                losses.append(float(loss.detach()))
                if len(losses) == given.steps:
                    break
        even.close()
    if dist.get_rank() == 0:
        print(f"shares at the end: {even.shares.counts}, loss {losses[0]:.2f} -> {losses[-1]:.2f}")
        print(f"report: {given.out}/report.html")
    return losses


def names(device: torch.device, speed: float | None) -> list[str]:
    """What each rank runs on, by rank."""
    if speed:
        own = f"modelled device of speed {speed:g}"
    else:
        own = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    found = [""] * dist.get_world_size()
    dist.all_gather_object(found, own)
    return found


def as_rank_of_torchrun(given: argparse.Namespace) -> None:
    """Join the processes that torchrun has started."""
    device = torch.device("cpu")
    if torch.cuda.is_available() and not given.speeds:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        train(device, given)
    finally:
        dist.destroy_process_group()


def as_rank_of_gang(rank, given: argparse.Namespace) -> None:
    train(torch.device(rank.device.torch), given)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=TASKS, default="transformer")
    parser.add_argument("--batch", type=int, default=48, help="samples of a step, of all ranks")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--speeds", type=lambda text: [float(one) for one in text.split(",")],
                        help="of CPU ranks, such as 1,2; default without GPUs")  # fmt: skip
    parser.add_argument("--out", default="runs/unequal-training", help="folder of the record, which is new")
    given = parser.parse_args()
    if not given.speeds and not torch.cuda.is_available():
        given.speeds = [1.0, 2.0]
    if "LOCAL_RANK" in os.environ:
        as_rank_of_torchrun(given)
        return
    import evenload

    devices = f"cpu*{len(given.speeds)}" if given.speeds else "cuda"
    evenload.gang(as_rank_of_gang, (given,), devices=devices)


if __name__ == "__main__":
    main()
