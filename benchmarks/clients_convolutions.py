"""Convolutions and max pooling of four clients with their own weights: our kernels beside torch's.

    python benchmarks/clients_convolutions.py

GFLOPS of one thread, by its CPU time: sums that a layer needs, not those that a way of doing it adds. Torch's
own (oneDNN) run in a loop over clients, as in the serial run. Samples are interleaved, the best counts.
Pooling is in millions of inputs a second. "used": would a fused step do this layer so?
"""

import argparse
import time
from collections.abc import Callable

import torch
from record import record

from evenload.cli.bench.measure.timing import least_in_turns
from evenload.clients.fused.engine import settle_allocator
from evenload.clients.step.image_kernels import layout as image_layout
from evenload.clients.step.image_kernels import operations  # noqa: F401  (called by name)

CLIENTS, REPEATS = 4, 25
CASES = {  # in, out, height and width, kernel, padding, samples
    "LeNet-5, first": (1, 6, 28, 5, 2, 32),
    "LeNet-5, second": (6, 16, 14, 5, 0, 32),
    "LeNet-5, first, batch 8": (1, 6, 28, 5, 2, 8),
    "LeNet-5, second, batch 8": (6, 16, 14, 5, 0, 8),
    "16 to 16 channels": (16, 16, 16, 3, 1, 32),
    "64 to 64 channels": (64, 64, 8, 3, 1, 32),
    "3 to 32 channels, batch 10": (3, 32, 32, 3, 0, 10),
    "32 to 64 channels, batch 10": (32, 64, 30, 3, 0, 10),
}
POOLED = {
    "LeNet-5, first pooling": (6, 28, 32),
    "LeNet-5, second pooling": (16, 10, 32),
    "64 channels, batch 10, pooling": (64, 28, 10),
}


def best(runs: dict[str, Callable[[], object]]) -> dict[str, float]:
    """CPU seconds of each, the least of several samples in turns."""
    found = least_in_turns(runs, REPEATS, cpu_clock=time.thread_time)
    return {name: one.cpu_s for name, one in found.items()}


def convolution(case: str) -> dict:
    c_in, c_out, side, k, pad, n = CASES[case]
    out = side + 2 * pad - k + 1
    x = torch.randn(CLIENTS, n, c_in, side, side)
    weight, bias = torch.randn(CLIENTS, c_out, c_in, k, k) * 0.1, torch.randn(CLIENTS, c_out)
    geometry = image_layout.geometry_of(x, weight, (pad, pad))
    order = image_layout.layout_for(geometry, n, x.element_size())
    x, grad = (image_layout.laid_out(t, order) for t in (x, torch.randn(CLIENTS, n, c_out, out, out)))
    ours, aten, pads = torch.ops.evenload, torch.ops.aten, (pad, pad)
    shape = ([1, 1], [pad, pad], [1, 1], False, [0, 0], 1)
    rows = list(zip(x.contiguous(), weight, bias, grad.contiguous(), strict=True))

    def backward(mask: list[bool]) -> Callable[[], object]:
        return lambda: [aten.convolution_backward(g, x, w, [c_out], *shape, mask) for x, w, _, g in rows]

    least = best(
        {
            "forward": lambda: ours.convolve(x, weight, bias, *pads),
            "forward, torch": lambda: [aten.convolution(x, w, b, *shape) for x, w, b, _ in rows],
            "inputs": lambda: ours.convolve_input_gradient(grad, weight, side, side, *pads),
            "inputs, torch": backward([True, False, False]),
            "weights": lambda: ours.convolve_weight_gradient(x, grad, k, k, *pads),
            "weights, torch": backward([False, True, True]),
        }
    )
    flops = 2 * CLIENTS * n * c_out * out * out * c_in * k * k
    is_used = image_layout.usable_layout(geometry, n, x.element_size()) is not None
    return {
        "layer": case,
        "vectors": order,
        "used": is_used,
        **{name: flops / s / 1e9 for name, s in least.items()},
    }


def pooling(case: str) -> dict:
    channels, side, n = POOLED[case]
    order = "channels" if n % 16 else "samples"
    x = image_layout.laid_out(torch.randn(CLIENTS, n, channels, side, side), order)
    rows, is_channels = list(x.contiguous()), order == "channels"
    ours, aten = torch.ops.evenload, torch.ops.aten
    places = ours.pool(x, 2, is_channels)[1]
    grad = image_layout.laid_out(torch.randn(*x.shape[:3], side // 2, side // 2), order)
    window = ([2, 2], [2, 2], [0, 0], [1, 1], False)
    known = [
        (g, row, aten.max_pool2d_with_indices(row, *window)[1])
        for g, row in zip(grad.contiguous(), rows, strict=True)
    ]
    least = best(
        {
            "forward": lambda: ours.pool(x, 2, is_channels),
            "forward, torch": lambda: [aten.max_pool2d_with_indices(row, *window) for row in rows],
            "inputs": lambda: ours.pool_gradient(grad, places, 2, side, side, is_channels),
            "inputs, torch": lambda: [
                aten.max_pool2d_with_indices_backward(g, row, *window, at) for g, row, at in known
            ],
        }
    )
    return {
        "layer": case,
        "vectors": order,
        "used": True,
        **{name: x.numel() / s / 1e6 for name, s in least.items()},
    }


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    settle_allocator("cpu")  # as in every fused run; it serves torch's kernels as well
    record("clients_convolutions", [convolution(case) for case in CASES] + [pooling(case) for case in POOLED])


if __name__ == "__main__":
    main()
