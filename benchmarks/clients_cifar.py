"""pfl-research's CIFAR10 network on clients of 50 pictures: strategies, plain torch, and a core's roofline.

    python benchmarks/clients_cifar.py [--clients 50] [--repeats 5] [--no-compile] [--rounds 1000]

A cohort of 50 clients, each 50 pictures of 3 x 32 x 32 in batches of 10, one epoch of plain descent: two
convolutions of 3 x 3 with 32 and 64 channels, pooling, dropout, 12,544-128-10. Samples are interleaved, the
least counts; "cpu" and "clock" are milliseconds of a step of one client.

The roofline: no step takes less than its products at the rate of multiply-adds between registers, and its
first dense layer no less than reading its weights three times and writing them once (forward, backward,
update) at the rate of a core's memory. Both rates are measured here. What it leaves out (activations,
pooling, dropout, losses) is for nothing.
"""

import argparse
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from clients_models import serial
from clients_strategies import ran_by, ways
from record import record
from torch import Tensor, nn

from evenload.cli.bench.measure.timing import least_in_turns, least_time

ROWS, BATCH = 50, 10
STEPS = ROWS // BATCH
CONVOLUTIONS = {(3, 32, 30): 2, (32, 64, 28): 3}  # in, out, places a side: products forward and backward
DENSE = {(12544, 128): 3, (128, 10): 3}
TAPS = 9
MANY = 1_000_000  # turns of the loop that measures the peak


class Cifar(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
            nn.Dropout(0.25), nn.Flatten(), nn.Linear(12544, 128), nn.ReLU(), nn.Dropout(0.5),
            nn.Linear(128, 10),
        )  # fmt: skip


def cohort(n: int) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn((n, ROWS, 3, 32, 32), generator=g), torch.randint(0, 10, (n, ROWS), generator=g)
    return list(zip(x, y, strict=True))


def in_threads(n: int, run: Callable[[], object]) -> None:
    torch.set_num_threads(n)
    try:
        run()
    finally:
        torch.set_num_threads(1)


# --- the roofline ---------------------------------------------------------------------------------


def peak_flops() -> float:
    """Floating operations a second of one core: multiply-adds whose numbers stay in registers."""
    from evenload.gpu.llvm.field.floats import lanes_for
    from evenload.gpu.llvm.program import Recipe as Source
    from evenload.gpu.llvm.program import load

    lanes, sums = lanes_for(1 << 20, 4), 10
    program = load(Source(f"peak-{lanes}-{sums}", {"turn": 2}, lambda: peak_ir(lanes, sums), (__file__,)))
    numbers = torch.zeros(64 * (sums + 2), dtype=torch.float32)
    return 2 * lanes * sums * MANY / least_s(lambda: program.turn(numbers.data_ptr(), MANY))


def peak_ir(lanes: int, n_sums: int) -> str:
    from llvmlite import ir

    from evenload.gpu.llvm.field.floats import Floats, Sums
    from evenload.gpu.llvm.ir_builder import add_kernel

    def body(code: Any, numbers: Any, n: Any) -> None:
        f = Floats(code, lanes, 4)
        a, b = f.load(numbers), f.load(numbers, f.row_bytes)
        sums = Sums(f, [f.load(numbers, f.row_bytes * (2 + i)) for i in range(n_sums)])
        with code.range(0, n):
            sums.add_products([a], [b] * n_sums)
        for i, value in enumerate(sums.get()):
            f.store(value, numbers, f.row_bytes * (2 + i))

    module = ir.Module("peak")
    add_kernel(module, "turn", 2, body)
    return str(module)


def memory_rate() -> float:
    """Bytes a second that one core reads and writes where nothing is cached."""
    numbers = torch.zeros(32 << 20)
    return 2 * numbers.numel() * 4 / least_s(lambda: numbers.add_(1.0))


def least_s(run: Callable[[], object]) -> float:
    return least_time(run, 20, cpu_clock=time.thread_time).cpu_s


def products() -> tuple[float, float]:
    """Floating operations of a step's convolutions (pictures need no gradient), and of its dense layers."""
    convolutions = sum(
        2 * n * BATCH * c_in * c_out * side**2 * TAPS for (c_in, c_out, side), n in CONVOLUTIONS.items()
    )
    return convolutions, sum(2 * n * BATCH * a * b for (a, b), n in DENSE.items())


def roofline() -> list[dict[str, Any]]:
    peak, memory = peak_flops(), memory_rate()
    convolutions, dense = products()
    weights = 4 * 12544 * 128
    least = convolutions / peak + max(dense / peak, 4 * weights / memory)
    said = f"{peak / 1e9:.0f} GFLOPS, {memory / 1e9:.0f} GB/s"
    return [
        {"strategy": "roofline of one core", "ran": said, "cpu, ms": 1e3 * least, "clock, ms": 1e3 * least}
    ]


# --- the strategies -------------------------------------------------------------------------------


def measured(asked: argparse.Namespace) -> list[dict[str, Any]]:
    names = ["serial", "rules:5", "threads*2/rules:5"]
    names += [] if asked.no_compile else ["rules-compiled:5", "threads*2/rules-compiled:5", "auto"]
    data, model = cohort(asked.clients), Cifar()
    start = {name: t.clone() for name, t in model.state_dict().items()}
    with ExitStack() as ended:
        runs = ways(Cifar, data, BATCH, names, asked.rounds, ended)
        in_two = {"plain torch, 2 threads": lambda: in_threads(2, lambda: serial(model, start, data, BATCH))}
        best = least_in_turns({"plain torch": runs.pop("plain torch")} | in_two | runs, asked.repeats)
    per_step = 1e3 / (asked.clients * STEPS)
    return [
        {
            "strategy": name,
            "ran": ran_by(one),
            "cpu, ms": one.cpu_s * per_step,
            "clock, ms": one.wall_s * per_step,
        }
        for name, one in best.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=1000, help="that 'auto' is told are to come")
    parser.add_argument("--no-compile", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = [*measured(asked), *roofline()]
    mflop = sum(products()) / 1e6
    for row in rows:
        row["x cpu"], row["x clock"] = (rows[0][name] / row[name] for name in ("cpu, ms", "clock, ms"))
        row["GFLOPS"] = mflop / row["cpu, ms"]
    record("clients_cifar", rows, clients=asked.clients, batch=BATCH, steps=STEPS, mflop_a_step=mflop)


if __name__ == "__main__":
    main()
