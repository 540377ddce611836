"""Times of work on a GPU: by events around a CUDA graph's replay, or by a clock that waits for the GPU.

Events around what is submitted to an idle GPU also time its submission. So the GPU is kept busy for a moment
before the first event, and both times are told: with and without submission.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

from part import Part

BUSY_CYCLES = 400_000  # of the GPU's clock, about 0.2 ms: longer than submitting a graph takes


def graph_of(part: Part, work: Callable[[], Any]) -> Callable[[], None]:
    """``work`` as a CUDA graph that is replayed; where this only pretends, ``work`` itself.

    ``work`` is called several times, with the same tensors as its inputs. RuntimeError is raised, also where
    this only pretends, if it needs the host.
    """
    if part.pretend:
        work()
        with without_host():
            work()
        return lambda: (work(), None)[1]
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):  # compiles, and warms the allocator
            work()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    for _ in range(3):  # the first replay moves the graph to the GPU
        graph.replay()
    torch.cuda.synchronize()
    return graph.replay


def without_host() -> Any:
    """A context in which what a CUDA graph cannot hold raises RuntimeError, also on a CPU.

    That is what waits for a GPU to read a number, and what makes a tensor of the host's numbers.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    aten = torch.ops.aten
    refused = {
        op.name().partition(".")[0]
        for op in (
            aten._local_scalar_dense.default,
            aten.nonzero.default,
            aten.masked_select.default,
            aten.equal.default,
            aten.bincount.default,
            aten._unique2.default,
            aten.repeat_interleave.Tensor,
            aten.is_nonzero.default,
            aten.lift_fresh.default,
        )
    }

    class Watched(TorchDispatchMode):
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            """Nothing is compiled in here, and torch's compiler is not loaded to make sure of that."""
            return False

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.name().partition(".")[0] in refused:
                raise RuntimeError(f"{func.name()} needs the host, so that no CUDA graph can hold it")
            return func(*args, **(kwargs or {}))

    return Watched()


def times_us(
    part: Part, replay: Callable[[], None], before: Callable[[int], Any], n: int
) -> dict[str, float]:
    """p50 and p99 of ``n`` replays on the GPU alone, and the median with submission; microseconds.

    before  is called with 0, 1, ... and prepares a replay, which is not timed
    """
    import numpy as np

    alone, with_submission = [], []
    for at in range(n):
        before(at)
        alone.append(one_us(part, replay, keeps_busy=True))
        before(at)
        with_submission.append(one_us(part, replay, keeps_busy=False))
    p50, p99 = np.percentile(alone, [50, 99]).tolist()
    return {"p50_us": p50, "p99_us": p99, "submitted_us": float(np.median(with_submission)), "n": n}


def one_us(part: Part, work: Callable[[], Any], *, keeps_busy: bool) -> float:
    """Microseconds of one call, by events; where this only pretends, by a clock."""
    if part.pretend:
        began = time.perf_counter()
        work()
        return 1e6 * (time.perf_counter() - began)
    import torch

    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    if keeps_busy:
        torch.cuda._sleep(BUSY_CYCLES)
    start.record()
    work()
    stop.record()
    stop.synchronize()
    return 1e3 * start.elapsed_time(stop)


def median_s(part: Part, work: Callable[[], Any], n: int, most_s: float = 3.0) -> float:
    """Median seconds of a call by the clock, each until the GPU is done. The caller has warmed it up.

    n, most_s  calls, fewer if these take longer together
    """
    spent: list[float] = []
    while len(spent) < n and sum(spent) < most_s:
        wait_for(part)
        began = time.perf_counter()
        work()
        wait_for(part)
        spent.append(time.perf_counter() - began)
    return statistics.median(spent)


def wait_for(part: Part) -> None:
    """Wait until the GPU has done all that it was given."""
    if not part.pretend:
        import torch

        torch.cuda.synchronize()
