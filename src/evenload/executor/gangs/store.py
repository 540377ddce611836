"""The TCP store through which the ranks of a gang find each other; the parent process hosts it."""

import contextlib
import socket
from collections.abc import Iterator

__all__ = ["LOCAL", "loopback_name", "open_store"]

LOCAL = "127.0.0.1"


@contextlib.contextmanager
def open_store(host: str) -> Iterator[int]:
    """Host a store at ``host``, and there only, until the block ends. Yields its port.

    The port is not closed between being found and being used, so no other process can take it.
    """
    import torch.distributed as dist

    listener = socket.create_server((host, 0), backlog=1024)
    port = listener.getsockname()[1]
    tcp_store = dist.TCPStore
    store = tcp_store(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    try:
        yield port
    finally:
        del store


def loopback_name() -> str | None:
    """Return the name of the loopback network interface."""
    names = {name for _, name in socket.if_nameindex()}
    return next((name for name in ("lo", "lo0") if name in names), None)
