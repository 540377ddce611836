"""One rank of a gang: what runs in its worker process. First ``join``, then ``run_rank``."""

import faulthandler
import os
import pickle
import signal
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from evenload.balance import partition
from evenload.devices import CurrentDevice, current

__all__ = ["Rank", "Rendezvous", "call_function", "join", "run_rank"]


@dataclass(frozen=True, slots=True)
class Rank:
    """Which member of the gang this is.

    number, size  0 to size - 1; as ``torch.distributed.get_rank()`` and ``get_world_size()`` say
    device        its device; ``device.torch`` is what to give torch
    backend       of the process group: "nccl" where every device is a CUDA GPU, else "gloo"
    """

    number: int
    size: int
    device: CurrentDevice
    backend: str

    def share(self, n: int) -> slice:
        """This rank's part of ``n`` rows: neighbours, as equal as can be."""
        shares = partition.equal(n, self.size)
        start = sum(shares[: self.number])
        return slice(start, start + shares[self.number])


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the ranks meet: a store that the parent keeps. ``timeout_s`` is torch's, for each exchange."""

    host: str
    port: int
    size: int
    backend: str
    timeout_s: float | None


def call_function(call: tuple) -> Any:
    """Do what the parent asks for next: a function and its arguments."""
    function, *arguments = call
    return function(*arguments)


def join(rendezvous: Rendezvous, number: int) -> None:
    """Become rank ``number``. Returns when all have joined."""
    import torch
    import torch.distributed as dist

    faulthandler.register(signal.SIGUSR1, all_threads=False)  # the parent asks a late rank where it is
    os.environ |= {"RANK": str(number), "WORLD_SIZE": str(rendezvous.size), "LOCAL_RANK": "0"}
    options: dict[str, Any] = {}
    if rendezvous.timeout_s is not None:
        options["timeout"] = timedelta(seconds=rendezvous.timeout_s)
    tcp_store = dist.TCPStore  # pyright: ignore[reportPrivateImportUsage] - public by its documentation
    store = tcp_store(
        rendezvous.host, rendezvous.port, rendezvous.size, is_master=False, wait_for_workers=False, **options
    )
    if rendezvous.backend == "nccl":
        torch.cuda.set_device(0)
        options["device_id"] = torch.device("cuda", 0)
    dist.init_process_group(
        rendezvous.backend, store=store, rank=number, world_size=rendezvous.size, **options
    )
    dist.barrier()


def run_rank(pickled: tuple[bytes, list], args: tuple, rendezvous: Rendezvous, number: int) -> Any:
    """Call the function, and leave the group when all have. One that raises is not waited for."""
    import torch.distributed as dist

    body, buffers = pickled
    fn: Callable = pickle.loads(body, buffers=buffers)
    result = fn(Rank(number, rendezvous.size, current(), rendezvous.backend), *args)
    dist.barrier()
    dist.destroy_process_group()
    return result
