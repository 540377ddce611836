"""Frames to one viewer as server-sent events: always the newest, never a queue."""

import asyncio

from evenload.dashboard.feed import Feed
from evenload.dashboard.guard import Receive, Scope, Send

__all__ = ["Pulse", "Stream"]

MAX_VIEWERS = 64
# A viewer that takes nothing for so long is let go; its browser comes back by itself.
STALL_S = 30.0
HEARTBEAT_S = 15.0


class Pulse:
    """A signal that wakes everybody who waits. ``beat()`` from any thread, ``wait()`` in the loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event = asyncio.Event()

    def bind(self) -> None:
        self._loop = asyncio.get_running_loop()

    def beat(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, timeout_s: float) -> None:
        try:
            await asyncio.wait_for(self._event.wait(), timeout_s)
        except TimeoutError:
            return


class Stream:
    """The endpoint that sends frames. It keeps of a viewer only the number of the frame that the viewer
    has."""

    def __init__(self, feed: Feed, pulse: Pulse):
        self._feed = feed
        self._pulse = pulse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._feed.n_viewers >= MAX_VIEWERS:
            await send({"type": "http.response.start", "status": 503, "headers": [(b"retry-after", b"10")]})
            await send({"type": "http.response.body", "body": b"too many viewers\n"})
            return
        self._feed.n_viewers += 1
        self._pulse.bind()
        gone = asyncio.create_task(_gone(receive))
        try:
            await self._serve(send, gone)
        except (TimeoutError, OSError):
            return
        finally:
            gone.cancel()
            self._feed.n_viewers -= 1

    async def _serve(self, send: Send, gone: "asyncio.Task[None]") -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        version, quiet_s = 0, 0.0
        while not gone.done():
            version, frame = self._feed.frames.since(version)
            if frame is not None:
                await _send(send, b"data:" + frame + b"\n\n")
                quiet_s = 0.0
            elif quiet_s >= HEARTBEAT_S:
                await _send(send, b": still here\n\n")
                quiet_s = 0.0
            if self._feed.frames.version == version:
                await self._pulse.wait(1.0)
                quiet_s += 1.0


async def _send(send: Send, body: bytes) -> None:
    """Raises TimeoutError if the viewer takes nothing."""
    await asyncio.wait_for(
        send({"type": "http.response.body", "body": body, "more_body": True}), timeout=STALL_S
    )


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
