"""The part of a gang that runs in the worker process of a rank: first ``join``, then ``run_rank``.

Ranks find each other through a TCP store, which the parent process hosts (``open_store``).
"""

import contextlib
import os
import pickle
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from evenload.balance import partition
from evenload.devices import CurrentDevice, current

LOCAL = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Rank:
    """A member of a gang, as its function sees it.

    number, size  0 to size - 1; as ``torch.distributed.get_rank()`` and ``get_world_size()`` say
    device        its device; ``device.torch`` is what to give torch
    backend       of the process group: "nccl" where every device is a CUDA GPU, else "gloo"
    """

    number: int
    size: int
    device: CurrentDevice
    backend: str

    def share(self, n: int) -> slice:
        """Return this rank's part of ``n`` rows: contiguous, and as equal as possible."""
        shares = partition.equal(n, self.size)
        start = sum(shares[: self.number])
        return slice(start, start + shares[self.number])


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """The address of the store through which ranks join. ``timeout_s``: torch's, for each exchange."""

    host: str
    port: int
    size: int
    backend: str
    timeout_s: float | None


def call_function(call: tuple) -> Any:
    """Call a function with its arguments, as the parent asks."""
    function, *arguments = call
    return function(*arguments)


def join(rendezvous: Rendezvous, number: int) -> None:
    """Become rank ``number``. Returns when all have joined."""
    import torch
    import torch.distributed as dist

    # As torchrun sets them: libraries such as accelerate look for these, and join the group that is there.
    os.environ |= {"RANK": str(number), "WORLD_SIZE": str(rendezvous.size), "LOCAL_RANK": "0"}
    os.environ |= {"MASTER_ADDR": rendezvous.host, "MASTER_PORT": str(rendezvous.port)}
    options: dict[str, Any] = {}
    if rendezvous.timeout_s is not None:
        options["timeout"] = timedelta(seconds=rendezvous.timeout_s)
    tcp_store = dist.TCPStore
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
    """Call the user's function, then leave the group with the others. If it raises, do not wait."""
    import torch.distributed as dist

    body, buffers = pickled
    fn: Callable = pickle.loads(body, buffers=buffers)
    result = fn(Rank(number, rendezvous.size, current(), rendezvous.backend), *args)
    tell_return(rendezvous.host, rendezvous.port, number)
    dist.barrier()
    dist.destroy_process_group()
    return result


@contextlib.contextmanager
def open_store(host: str) -> Iterator[tuple[Any, int]]:
    """Host a store at ``host``, and there only, until the block ends. Yields it and its port.

    The port is not closed between being found and being used, so no other process can take it.
    """
    import torch.distributed as dist

    listener = socket.create_server((host, 0), backlog=1024)
    port = listener.getsockname()[1]
    tcp_store = dist.TCPStore
    store = tcp_store(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    try:
        yield store, port
    finally:
        del store


def tell_return(host: str, port: int, rank: int) -> None:
    """Tell whoever hosts the store that the function of ``rank`` has returned."""
    import torch.distributed as dist

    tcp_store = dist.TCPStore
    store = tcp_store(host, port, is_master=False, wait_for_workers=False)
    place = store.add("evenload/returned", 1)
    store.set(f"evenload/returned/{place}", str(rank))


def returned(store: Any) -> list[int]:
    """Return the ranks whose function has returned, in that order; none if the store has failed."""
    with contextlib.suppress(Exception):
        n = store.add("evenload/returned", 0)
        keys = [f"evenload/returned/{place + 1}" for place in range(n)]
        return [int(store.get(key)) for key in keys if store.check([key])]
    return []


def loopback_name() -> str | None:
    """Return the name of the loopback network interface."""
    names = {name for _, name in socket.if_nameindex()}
    return next((name for name in ("lo", "lo0") if name in names), None)
