"""Limits on connections to the page, so that those that never ask or never read keep nobody else out.

uvicorn waits as long as it takes for the rest of a request, and for a reader of an answer.
"""

import asyncio
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["limited_protocol"]

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
    """A connection to the page that ends if its request does not, or if nobody reads the answer.

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


def limited_protocol(most_waiting: int = MOST_WAITING) -> type[LimitedProtocol]:
    """Return a protocol for one uvicorn server; its connections are counted together.

    most_waiting  connections on which a request is due; of more, the oldest ends. A server takes up all that
                  connect at once before it reads of any: it must hold every client that may do so.
    """
    return type("ServersProtocol", (LimitedProtocol,), {"waiting": {}, "most_waiting": most_waiting})
