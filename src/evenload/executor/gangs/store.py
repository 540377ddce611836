"""The TCP store through which the ranks of a gang find each other; the parent process hosts it."""

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

LOCAL = "127.0.0.1"


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
