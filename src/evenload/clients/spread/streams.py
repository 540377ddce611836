"""CUDA streams: workers of one process whose kernels run side by side on one GPU.

A worker has a stream, and a copy of the model on the GPU that is used in this stream only. So nothing has to
be handed from one stream to another: the copy's memory comes from its stream's own pool, and is used in the
order in which that stream runs. Results leave as copies on the host, which waits for them.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def why_no_streams() -> str | None:
    """Why there are no CUDA streams here, or None."""
    if torch.cuda.is_available():
        return None
    if torch.version.cuda is None and torch.version.hip is None:
        return "this torch is built without CUDA, so it has no streams"
    return "torch finds no CUDA GPU, so there are no streams"


def gpu_of(devices: Any) -> str:
    """The GPU whose streams are meant by ``devices``: the first one named, else torch's current one."""
    named = re.search(r"cuda:(\d+)", str(devices))
    return f"cuda:{named[1] if named else torch.cuda.current_device()}"


def n_gpus() -> int:
    return torch.cuda.device_count()


def free_bytes(device: str) -> int:
    """Free bytes of the GPU's memory."""
    return torch.cuda.mem_get_info(device)[0]


class Streams:
    """The streams of the GPU ``device``, one per worker, made when first needed."""

    def __init__(self, device: str):
        self.device = device
        self._streams: dict[int, torch.cuda.Stream] = {}

    def make(self, n: int) -> None:
        """Make the streams of workers 0 to n-1, before threads ask for them."""
        for worker in range(n):
            self._of(worker)

    @contextmanager
    def inside(self, worker: int) -> Iterator[None]:
        """What this thread starts on the GPU inside the block runs in the worker's stream.

        It begins after what the GPU's current stream holds (the model was copied there), and has ended when
        the block ends.
        """
        stream = self._of(worker)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            yield
        stream.synchronize()

    def _of(self, worker: int) -> torch.cuda.Stream:
        if worker not in self._streams:
            self._streams[worker] = torch.cuda.Stream(self.device)
        return self._streams[worker]
