"""Send requests to servers that speak OpenAI's protocol: from coroutines, over connections that stay open.

A request goes to the server that has the fewest in hand, as soon as its pace allows. It is sent again while
the server is busy or not there: connections that fail, 408, 409, 425, 429 and 5xx. What is wrong with the
request itself is told at once.
"""

import asyncio
import base64
import contextlib
import hashlib
import http.client
import random
import select
import socket
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from evenload.errors import ConfigError, EvenloadError, FormatError, quoted, reason_of
from evenload.pipeline.stages.server_pace import ServerPace, pause_s, seconds_of

BUSY = (408, 409, 425, 429)
TOO_MANY = (429, 503)  # the server is too busy for others, too
MOST_ANSWER_BYTES = 64 << 20
MOST_THREADS = 4096
PATH = "/chat/completions"


class Reply(NamedTuple):
    """The answer to a request: its status, its headers by name in small letters, and the seconds it took."""

    status: int
    headers: Mapping[str, str]
    content: bytes
    seconds: float


@dataclass(slots=True)
class _Server:
    """A server with its pace, and connections to it that are open and idle."""

    url: str
    pace: ServerPace
    idle: list[http.client.HTTPConnection] = field(default_factory=list)


@dataclass(slots=True)
class _Attempt:
    """A request on its way; ``connection``: by which, once a thread has taken it up."""

    connection: http.client.HTTPConnection | None = None
    is_cancelled: bool = False


class ModelServers:
    """One or several servers with the same model.

    timeout_s  seconds without a word from a server after which a request is sent again
    retries    further attempts at a request
    key        sent along, and written nowhere
    shared     a folder of all workers that are to keep the limits together; None: only this one is
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        timeout_s: float,
        retries: int,
        key: str = "",
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        shared: Path | None = None,
    ):
        self._servers = [
            _Server(url, ServerPace(requests_per_minute, tokens_per_minute, file=_pace_file(shared, url)))
            for url in urls
        ]
        self._timeout_s, self._retries, self._key = timeout_s, retries, key
        self._threads = ThreadPoolExecutor(MOST_THREADS, "evenload-ask")
        self._door, self._changed = asyncio.Lock(), asyncio.Event()
        self._sleep = asyncio.sleep

    async def ask(self, body: bytes, tokens: float, used: Callable[[bytes], int | None]) -> Reply:
        """Send the request until there is an answer. Raises EvenloadError with what was said last.

        tokens  that it may take, where the server has told of none yet
        used    reads from an answer the tokens that it took
        """
        why = ""
        for attempt in range(self._retries + 1):
            server, reckoned = await self._turn(tokens)
            pace, began_s = server.pace, time.monotonic()
            try:
                reply = await self._send(server, body)
            except (OSError, http.client.HTTPException) as error:  # also a time limit, or a cut connection
                why, wanted_s = f"{server.url}: {type(error).__name__}: {reason_of(error)}", None
                if isinstance(error, ConnectionRefusedError):
                    with pace.together():
                        pace.refused(time.monotonic(), began_s, {}, random.random())
            else:
                now = time.monotonic()
                if reply.status == 200:
                    with pace.together():
                        pace.answered(now, reply.headers, used(reply.content), reckoned)
                    return reply
                said = reply.content[:4096].decode("utf-8", "replace")
                why = f"{server.url} answered {reply.status}: {quoted(said, 200)}"
                if reply.status not in BUSY and reply.status < 500:
                    hint = _HINTS.get(reply.status, "correct the request")
                    raise EvenloadError(self.without_key(why), hint=hint)
                wanted_s = seconds_of(reply.headers.get("retry-after"))
                if reply.status in TOO_MANY:
                    with pace.together():
                        pace.refused(now, began_s, reply.headers, random.random())
            finally:
                pace.end()
                self._changed.set()
            if attempt < self._retries and server.pace.hold_s <= time.monotonic():
                await self._sleep(pause_s(attempt, wanted_s, random.random()))
        text = f"{self.without_key(why)}, {self._retries + 1} times"
        raise EvenloadError(text, hint="is the server up? see retries, timeout_s")

    def without_key(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for server in self._servers:
            while server.idle:
                server.idle.pop().close()

    async def _turn(self, tokens: float) -> tuple[_Server, float]:
        """Wait until a request may go, those before it first; returns the server, which counts it as open."""
        async with self._door:
            while True:
                now = time.monotonic()
                for server in sorted(self._servers, key=lambda one: (one.pace.wait_s(now), one.pace.n_open)):
                    with server.pace.together():
                        if server.pace.wait_s(now) > 0:
                            continue
                        # Of equals, the one is next that had its turn longest ago.
                        self._servers.remove(server)
                        self._servers.append(server)
                        return server, server.pace.begin(now, tokens)
                wait_s = min(server.pace.wait_s(now) for server in self._servers)
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(wait_s, 3600.0)):
                        await self._changed.wait()

    async def _send(self, server: _Server, body: bytes) -> Reply:
        """Send it once, from a thread; one that was cancelled gives its thread back at once.

        Raises TimeoutError if a server says something all the time, and nothing whole within two time limits.
        """
        attempt, loop, limit = _Attempt(), asyncio.get_running_loop(), asyncio.timeout(2 * self._timeout_s)
        try:
            async with limit:
                return await loop.run_in_executor(self._threads, self._exchange, server, body, attempt)
        except (asyncio.CancelledError, TimeoutError):
            attempt.is_cancelled = True
            with contextlib.suppress(OSError, AttributeError):
                attempt.connection.sock.shutdown(socket.SHUT_RDWR)  # pyrefly: ignore
            if limit.expired():
                raise TimeoutError(f"no whole answer within {2 * self._timeout_s:g} s") from None
            raise

    def _exchange(self, server: _Server, body: bytes, attempt: _Attempt) -> Reply:
        while True:
            try:
                connection, is_new = server.idle.pop(), False
            except IndexError:
                connection, is_new = _connection(server.url, self._timeout_s), True
            if not is_new and _has_news(connection):
                connection.close()
                continue
            attempt.connection = connection
            began_s = time.monotonic()
            try:
                reply = self._exchange_on(connection, server.url, body, began_s)
            except (ConnectionResetError, BrokenPipeError):  # also RemoteDisconnected
                connection.close()
                if is_new or attempt.is_cancelled:
                    raise
                continue  # the server had closed it meanwhile
            except BaseException:
                connection.close()
                raise
            if connection.sock is not None:
                server.idle.append(connection)
            return reply

    def _exchange_on(
        self, connection: http.client.HTTPConnection, url: str, body: bytes, began_s: float
    ) -> Reply:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        parts = urlsplit(url)
        is_sent_whole = parts.scheme == "http" and connection.host != parts.hostname  # by way of a proxy
        if is_sent_whole and (named := _proxy_of(parts.scheme, parts.hostname or "")):
            headers |= _proxy_headers(named)
        connection.request("POST", (url if is_sent_whole else parts.path) + PATH, body, headers)
        answer = connection.getresponse()
        content = answer.read(MOST_ANSWER_BYTES + 1)
        if len(content) > MOST_ANSWER_BYTES:
            raise FormatError(f"{url} answered with more than {MOST_ANSWER_BYTES >> 20} MiB")
        if answer.length:
            raise http.client.IncompleteRead(content, answer.length)
        told = {name.lower(): value for name, value in answer.getheaders()}
        return Reply(answer.status, told, content, time.monotonic() - began_s)


_HINTS = {
    401: "set the key in the variable that api_key_env names",
    403: "set the key in the variable that api_key_env names",
    404: "url ends before /chat/completions; model must be one that the server has",
}


def _has_news(connection: http.client.HTTPConnection) -> bool:
    """Whether an idle connection was closed, or more came than was said: never the next request's answer."""
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)  # pyrefly: ignore
    return bool(poll.poll(0))


def _pace_file(folder: Path | None, url: str) -> Path | None:
    name = hashlib.sha256(f"{socket.gethostname()} {url}".encode()).hexdigest()[:16]
    return None if folder is None else folder / f"pace-{name}.tmp"


def _connection(url: str, timeout_s: float) -> http.client.HTTPConnection:
    """Return a connection, not open yet, to the server or to the proxy that the environment names."""
    parts = urlsplit(url)
    make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    host = parts.hostname or ""
    proxy = _proxy_of(parts.scheme, host)
    if not proxy:
        return make(host, parts.port, timeout=timeout_s)
    by_way_of = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    connection = make(by_way_of.hostname or "", by_way_of.port, timeout=timeout_s)
    if parts.scheme == "https":
        connection.set_tunnel(host, parts.port, headers=_proxy_headers(proxy))
    return connection


def _proxy_of(scheme: str, host: str) -> str:
    return "" if urllib.request.proxy_bypass(host) else urllib.request.getproxies().get(scheme, "")


def _proxy_headers(proxy: str) -> dict[str, str]:
    parts = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    if parts.username is None:
        return {}
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
    return {"Proxy-Authorization": f"Basic {base64.b64encode(login).decode()}"}


def checked_url(url: str) -> str:
    """Return the address of a server without a slash at its end. Raises ConfigError if it is none."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"url: {quoted(url)} is no address of a server", hint="write http://localhost:8000/v1"
        )
    if parts.username is not None or parts.password is not None:
        raise ConfigError(
            f"url: the address of {quoted(parts.hostname)} holds a password, which the run folder would show",
            hint="put the key into an environment variable, and its name into api_key_env",
        )
    return url.rstrip("/")
