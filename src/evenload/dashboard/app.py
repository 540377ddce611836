"""The page's addresses: page, stream of frames, stretches of the timeline, pictures, report."""

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator
from importlib import resources

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from evenload.dashboard.feed import Feed
from evenload.dashboard.guard import Guard, Receive, Scope, Send
from evenload.dashboard.panel import MOST_BYTES
from evenload.errors import EvenloadError
from evenload.report.html import fill, report_script

WIDTHS = (100, 4000)
# A number is given to one picture only, so it may be kept.
PICTURE = {"content-security-policy": "sandbox", "cache-control": "private, max-age=3600, immutable"}


def make_app(feed: Feed, *, host: str, token: str | None) -> Guard:
    """The application for ``feed``; ``host`` and ``token`` are what ``Guard`` checks."""
    answers = _Answers(feed)
    routes = [
        Route("/", answers.page),
        Route("/stream", Stream(feed), methods=["GET"]),
        Route("/timeline", answers.timeline),
        Route("/picture/{number:int}", answers.picture),
        Route("/report.html", answers.report),
        Route("/control", answers.control, methods=["POST"]),
    ]
    return Guard(Starlette(routes=routes), host, token)


class _Answers:
    """The answers of the page's server, by address."""

    def __init__(self, feed: Feed):
        self._feed, self._shell = feed, _shell()

    async def page(self, request: Request) -> Response:
        return HTMLResponse(self._shell)

    async def timeline(self, request: Request) -> Response:
        window = _window(request)
        if window is None:
            return PlainTextResponse("give width, and from and to in seconds\n", 400)
        return Response(await run_in_threadpool(self._feed.timeline, *window), media_type="application/json")

    async def picture(self, request: Request) -> Response:
        found = self._feed.picture(request.path_params["number"])
        if found is None:
            return PlainTextResponse("there is no such picture\n", 404)
        kind, content = found
        return Response(content, media_type=kind, headers=PICTURE)

    async def report(self, request: Request) -> Response:
        text = await run_in_threadpool(self._feed.report)
        return HTMLResponse(text, headers={"content-disposition": 'attachment; filename="report.html"'})

    async def control(self, request: Request) -> Response:
        try:
            sent = await _body(request)  # before any answer: closing before would reset the connection
        except ValueError:
            return PlainTextResponse("that is no JSON of ours: too long\n", 400)
        panel = self._feed.panel
        if panel is None:
            return PlainTextResponse("this page only shows; start it with --control\n", 403)
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            return PlainTextResponse("send JSON\n", 415)
        try:
            await run_in_threadpool(panel.act, json.loads(sent))
        except EvenloadError as error:
            return PlainTextResponse(f"{error.message}\n{error.hint or ''}".strip() + "\n", 409)
        except (ValueError, RecursionError):
            return PlainTextResponse("that is no JSON\n", 400)
        await run_in_threadpool(self._feed.publish)
        return PlainTextResponse("done\n")


async def _body(request: Request) -> bytes:
    """What was sent, if it is short. Raises ValueError if not."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MOST_BYTES:
            raise ValueError("too long")
    return body


def make_static_app(text: str, *, host: str, token: str | None) -> Guard:
    """One page that is complete, and nothing else."""

    async def page(request: Request) -> Response:
        return HTMLResponse(text)

    return Guard(Starlette(routes=[Route("/", page)]), host, token)


def _shell() -> str:
    """The page without a run: that comes through the stream."""
    script = (resources.files("evenload.dashboard") / "assets" / "stream.js").read_text(encoding="utf-8")
    text = fill(
        title="live",
        headline="This page shows a run while it runs.",
        view="null",
        script=report_script(script),
        policy="; connect-src 'self'",
    )
    return text.replace("img-src data:", "img-src data: 'self'", 1)


def _window(request: Request) -> tuple[float | None, float | None, int] | None:
    """``from``, ``to`` (both or none) and ``width`` of the query; None if they are no such numbers."""
    query = request.query_params
    try:
        width = max(WIDTHS[0], min(WIDTHS[1], int(query.get("width", "1200")[:6])))
        if "from" not in query and "to" not in query:
            return None, None, width
        from_s, to_s = float(query["from"]), float(query["to"])
    except (ValueError, KeyError):
        return None
    if not (math.isfinite(from_s) and math.isfinite(to_s) and from_s <= to_s):
        return None
    return from_s, to_s, width


MAX_VIEWERS = 64
HEARTBEAT_S = 15.0
LOOK_S = 0.1  # frames come less often: to wake each viewer by name would gain nothing
UNBUFFERED = {"x-accel-buffering": "no"}


class Stream:
    """The endpoint that sends frames. It keeps of a viewer only the number of the frame that the viewer
    has."""

    def __init__(self, feed: Feed):
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._feed.n_viewers >= MAX_VIEWERS:
            refusal = PlainTextResponse("too many viewers\n", 503, {"retry-after": "10"})
            return await refusal(scope, receive, send)
        self._feed.n_viewers += 1
        try:
            frames = StreamingResponse(self._frames(), 200, UNBUFFERED, "text/event-stream")
            await frames(scope, receive, send)
        finally:
            self._feed.n_viewers -= 1

    async def _frames(self) -> AsyncIterator[bytes]:
        """Yield what a viewer is sent, until it has gone."""
        version, sent_s = 0, time.monotonic()
        while True:
            version, frame = self._feed.frames.since(version)
            if frame is not None:
                yield b"data:" + frame + b"\n\n"
                sent_s = time.monotonic()
            elif time.monotonic() - sent_s >= HEARTBEAT_S:
                yield b": still here\n\n"
                sent_s = time.monotonic()
            if self._feed.frames.version == version:
                await asyncio.sleep(LOOK_S)
