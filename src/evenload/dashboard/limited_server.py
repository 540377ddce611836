"""The one server, of live page, metrics and proofs: who never asks or never reads keeps nobody else out.

uvicorn waits as long as it takes for the rest of a request, and for a reader of an answer.
"""

import asyncio
import socket
from typing import Any, ClassVar

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from evenload.errors import ConfigError, printable, quoted

# A request is here this long after its first byte, or the connection ends. Each piece of a body has as long.
REQUEST_S = 10.0
PIECE_BYTES = 1 << 20
# Who takes nothing of an answer for so long is let go; a browser's stream comes back by itself.
STALL_S = 30.0
# Of more connections that wait for a request, the one that has waited longest ends.
MOST_WAITING = 64
MOST_HEAD_BYTES = 16_384

_UNFINISHED = (h11.IDLE, h11.SEND_BODY)


class LimitedProtocol(H11Protocol):
    """A connection that ends if its request does not, or if nobody reads the answer.

    ``waiting`` are the connections of one server on which a request is due, by age.
    """

    waiting: ClassVar[dict[asyncio.BaseTransport, None]]
    most_waiting: ClassVar[int] = MOST_WAITING
    _n_bytes = 0
    _due: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyrefly: ignore
        super().connection_made(transport)
        self._expect_request()

    def data_received(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except h11.LocalProtocolError:  # rubbish after a request that is being answered
            self.transport.abort()
        self._n_bytes += len(data)
        if self._n_bytes >= PIECE_BYTES:
            self._settle()
        self._expect_request()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self._stalled or self.loop.call_later(STALL_S, self.transport.abort)

    def resume_writing(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        super().resume_writing()

    def _expect_request(self) -> None:
        """Have the rest of a request come in time; called whenever something has changed."""
        if self.transport.is_closing() or self.conn.their_state not in _UNFINISHED:
            return self._settle()
        if self._due is None:
            self._due = self.loop.call_later(REQUEST_S, self.transport.abort)
        self.waiting.setdefault(self.transport)
        if len(self.waiting) > self.most_waiting:
            oldest: Any = next(iter(self.waiting))
            del self.waiting[oldest]
            oldest.abort()

    def _settle(self) -> None:
        self.waiting.pop(self.transport, None)
        self._n_bytes = 0
        if self._due is not None:
            self._due.cancel()
            self._due = None


def limited_server(app: Any, *, most_waiting: int = MOST_WAITING, **options: Any) -> uvicorn.Server:
    """Return a server of ``app``; its connections are counted together.

    most_waiting  connections on which a request is due; of more, the oldest ends. A server takes up all that
                  connect at once before it reads of any: it must hold every client that may do so.
    options       of uvicorn
    """
    protocol = type("ServersProtocol", (LimitedProtocol,), {"waiting": {}, "most_waiting": most_waiting})
    config = uvicorn.Config(
        app,
        log_level="critical",
        access_log=False,
        lifespan="off",
        ws="none",
        http=protocol,
        h11_max_incomplete_event_size=MOST_HEAD_BYTES,
        server_header=False,
        **options,
    )
    return uvicorn.Server(config)


def listen(host: str, port: int, hint: str) -> socket.socket:
    """A socket that listens at an address. Raises ConfigError, with ``hint``, if it cannot be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        bound = socket.socket(family)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", error)
        raise ConfigError(f"there is no address {quoted(host)}: {why}", hint=hint) from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(1024)
        return bound
    except OSError as error:
        bound.close()
        where = f"{printable(host)}:{port}"
        raise ConfigError(f"{where} cannot be used: {error.strerror}", hint=hint) from error


def parse_address(text: str, hint: str) -> tuple[str, int]:
    """``9464`` or ``0.0.0.0:9464`` as host and port; loopback if only a port is given. Raises ConfigError."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal() and int(port) <= 65535):
        raise ConfigError(f"{quoted(text)} is no address", hint=hint)
    return host.strip("[]") or "127.0.0.1", int(port)
