"""The page's server: uvicorn on one socket, until it is told to stop or the run it was started for ends."""

import asyncio
import contextlib
import errno
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from evenload._optional import require
from evenload.dashboard.feed import Feed
from evenload.dashboard.guard import is_loopback
from evenload.dashboard.panel import Panel
from evenload.errors import ConfigError
from evenload.events import Event

__all__ = ["Address", "serve", "serve_page"]

DEFAULT_PORT = 8642
TRIED_PORTS = 20
HINT = "use --host 127.0.0.1, or choose another with --port"
# After the run a page is served this much longer, so that every viewer has its end.
LAST_S = 3.0


@dataclass(frozen=True)
class Address:
    """The address of a page. ``port`` None: the first free one from 8642; 0: any. ``token`` "": one is made
    up.

    Anything but loopback has a token, asked for or not.
    """

    host: str = "127.0.0.1"
    port: int | None = None
    token: str | None = None

    def secured(self) -> "Address":
        is_needed = self.token == "" or (self.token is None and not is_loopback(self.host))
        return Address(self.host, self.port, secrets.token_urlsafe(24)) if is_needed else self

    def url(self, port: int) -> str:
        host = "localhost" if self.host in ("0.0.0.0", "::") else self.host
        name = f"[{host}]" if ":" in host else host
        return f"http://{name}:{port}/" + (f"?token={self.token}" if self.token else "")


def serve(
    events: Path,
    address: Address,
    *,
    tell: Callable[[str], None],
    every_s: float = 0.5,
    ends_with: TextIO | None = None,
    sinks: Sequence[Callable[[Event], None]] = (),
    has_control: bool = False,
) -> None:
    """Serve the page of the run whose events are in ``events`` (there already, or soon), until Ctrl-C.

    tell       called with the page's URL once it can be opened
    ends_with  end when this file does (a pipe from the run), once viewers were shown the end of the run
    sinks      get every event that the page reads
    has_control  viewers may drain and add devices; then there is a token, wherever the page is
    Raises ConfigError if the address cannot be used, MissingExtra without starlette or uvicorn.
    """
    _require()
    from evenload.dashboard.app import make_app

    if has_control and address.token is None:
        address = Address(address.host, address.port, "")
    address = address.secured()
    feed = Feed(events, every_s=every_s, sinks=sinks, panel=Panel(events.parent) if has_control else None)
    with _bound(address) as bound:
        server = _server(make_app(feed, host=address.host, token=address.token))
        feed.start()
        try:
            if ends_with is not None:
                threading.Thread(target=_end_with, args=(server, feed, ends_with), daemon=True).start()
            tell(address.url(bound.getsockname()[1]))
            with contextlib.suppress(KeyboardInterrupt):
                asyncio.run(server.serve(sockets=[bound]))
        finally:
            feed.stop()
    if feed.error is not None:
        raise feed.error


def serve_page(text: str, address: Address, *, tell: Callable[[str], None]) -> None:
    """Serve one page that is complete, until Ctrl-C. Raises as ``serve``."""
    _require()
    from evenload.dashboard.app import make_static_app

    address = address.secured()
    with _bound(address) as bound:
        server = _server(make_static_app(text, host=address.host, token=address.token))
        tell(address.url(bound.getsockname()[1]))
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(server.serve(sockets=[bound]))


def _require() -> None:
    for package in ("starlette", "uvicorn"):
        require(package, extra="watch", why="serving the live page")


def _server(app: Any) -> Any:
    from evenload.dashboard.limited_server import limited_server

    return limited_server(app, limit_concurrency=256, timeout_graceful_shutdown=1)


def _bound(address: Address) -> socket.socket:
    from evenload.dashboard.limited_server import listen

    if address.port is not None:
        return listen(address.host, address.port, HINT)
    for port in range(DEFAULT_PORT, DEFAULT_PORT + TRIED_PORTS):
        try:
            return listen(address.host, port, HINT)
        except ConfigError as error:
            if getattr(error.__cause__, "errno", None) != errno.EADDRINUSE:
                raise
    return listen(address.host, 0, HINT)


def _end_with(server: Any, feed: Feed, pipe: TextIO) -> None:
    """Stop ``server`` once ``pipe`` has ended and the last events were shown."""
    while pipe.read(1):
        pass
    time.sleep(LAST_S if feed.n_viewers else 0.0)
    server.should_exit = True
