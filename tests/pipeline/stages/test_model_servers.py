"""Servers that break the protocol: raw sockets that say exactly what a test has them say, again and again.

The oracle is what each server was asked, and what it answered to that: the world is known beforehand.
"""

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evenload.errors import EvenloadError
from evenload.pipeline.stage import Item, StageContext
from evenload.pipeline.stages.openai import OpenAI

Say = Callable[["RawServer", socket.socket, str, int], bool]


class RawServer:
    """Hears requests on many connections; ``say`` writes what comes back, and tells whether to go on.

    asked   the prompt of each request, in the order in which they came
    """

    def __init__(self, say: Say):
        self._say, self.asked, self.is_over = say, list[str](), threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rb") as heard:
                while line := heard.readline():
                    n_bytes = 0
                    while (line := heard.readline().strip()) != b"":
                        name, _, value = line.partition(b":")
                        n_bytes = int(value) if name.lower() == b"content-length" else n_bytes
                    text = json.loads(heard.read(n_bytes))["messages"][-1]["content"]
                    self.asked.append(text)
                    if not self._say(self, connection, text, self.asked.count(text)):
                        return
        except OSError:
            pass  # the client left

    def close(self) -> None:
        self.is_over.set()
        self._socket.close()


def answer(text: str, *, lie: int = 0) -> bytes:
    body = json.dumps({"choices": [{"message": {"content": text}}]}).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (len(body) + lie) + body


def drip(server: RawServer, connection: socket.socket, start: bytes, byte: bytes) -> bool:
    """Say a byte after each other until the client leaves."""
    connection.sendall(start)
    while not server.is_over.wait(0.02):
        connection.sendall(byte)
    return False


def hold(server: RawServer) -> bool:
    server.is_over.wait(500)
    return False


BAD: dict[str, Callable[[RawServer, socket.socket], bool]] = {
    "nothing": lambda server, to: hold(server),
    "bytes of a body": lambda server, to: drip(server, to, answer("x", lie=10**6), b" "),
    "bytes of a chunk": lambda server, to: drip(
        server, to, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffff\r\n", b" "
    ),
    "bytes of a header": lambda server, to: drip(server, to, b"HTTP/1.1 200 OK\r\nX-Long: ", b"x"),
    "go on for ever": lambda server, to: drip(server, to, b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "longer than told, held": lambda server, to: to.sendall(answer("x", lie=9)) or hold(server),
    "longer than told, closed": lambda server, to: bool(to.sendall(answer("x", lie=9))),
    "no HTTP": lambda server, to: bool(to.sendall(b"220 smtp ready\r\n\r\n")),
    "a broken chunk": lambda server, to: bool(
        to.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}")
    ),
    "headers without end": lambda server, to: bool(to.sendall(b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 300)),
}


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Say], RawServer]]:
    monkeypatch.setenv("no_proxy", "*")
    servers: list[RawServer] = []

    def start(say: Say) -> RawServer:
        servers.append(RawServer(say))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def ask_all(url: str, texts: list[str], **more: Any) -> list[Any]:
    """Ask one after the other, by one stage; what is raised has the place of an answer."""
    context = StageContext("ask", SimpleNamespace(id="cpu:0", torch="cpu"), Path())
    stage = OpenAI(context, url=url, model="m", prompt="{text}", **more)

    async def ask() -> list[Any]:
        found: list[Any] = []
        for at, text in enumerate(texts):
            try:
                found.append((await stage({"text": text}, Item(at, text)))["answer"])
            except EvenloadError as error:
                found.append(error)
        return found

    stage._servers._sleep = lambda _: asyncio.sleep(0)
    try:
        return asyncio.run(ask())
    finally:
        stage.close()


@pytest.mark.parametrize("how", BAD)
def test_what_is_never_whole_is_asked_for_again_and_told_at_last(
    serve: Callable[[Say], RawServer], how: str
) -> None:
    """Without a limit for the whole, a server that says a byte now and then would hold an item for ever."""

    def say(server: RawServer, to: socket.socket, text: str, n: int) -> bool:
        return BAD[how](server, to) if text == "never" or n < 2 else not to.sendall(answer(text.upper()))

    server = serve(say)
    once, never, after = ask_all(server.url, ["once", "never", "once"], timeout_s=0.25, retries=1)
    assert (once, after) == ("ONCE", "ONCE")
    assert isinstance(never, EvenloadError)
    assert "2 times" in str(never)
    assert server.asked == ["once", "once", "never", "never", "once"]


def test_what_nobody_asked_for_is_never_the_answer_to_the_next_request(
    serve: Callable[[Say], RawServer], until: Callable[[Callable[[], object], str], None]
) -> None:
    """A server that says more than its Content-Length: a whole second answer, where the connection stays."""
    is_said = threading.Event()

    def say(server: RawServer, to: socket.socket, text: str, n: int) -> bool:
        to.sendall(answer(text.upper()))
        if text == "first":
            is_said.wait(500)
            to.sendall(answer("of nobody"))
            is_said.clear()
        return True

    server = serve(say)

    class Told(dict):
        """The values of the second request, which are read once the surplus has been said."""

        def __getitem__(self, name: str) -> Any:
            is_said.set()
            until(lambda: not is_said.is_set(), "the surplus was said")
            return "second"

        __missing__ = __getitem__

    context = StageContext("ask", SimpleNamespace(id="cpu:0", torch="cpu"), Path())
    stage = OpenAI(context, url=server.url, model="m", prompt="{text}", retries=0)

    async def both() -> list[str]:
        first = await stage({"text": "first"}, Item(0, "a"))
        second = await stage(Told(), Item(1, "b"))
        return [first["answer"], second["answer"]]

    try:
        assert asyncio.run(both()) == ["FIRST", "SECOND"]
    finally:
        stage.close()
    assert server.asked == ["first", "second"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html>It works!</html>", "not JSON.*It works"),
        (b'{"choices": [{"mess', "not JSON.*mess"),
        (b"", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"error": {"message": "out of credit", "code": 402}}', "gave no text.*out of credit"),
        (b'{"output": [{"content": [{"text": "other"}]}]}', "gave no text"),
        (b"null", "gave no text"),
        (b'{"choices": [{"message": {"content": null, "refusal": "no"}}]}', "gave no text"),
        (b'{"choices": []}', "gave no text"),
        (b'{"choices": [{"message": {"content": 7}}]}', "gave no text"),
    ],
)
def test_an_answer_that_is_none_fails_its_item_with_what_was_said(
    serve: Callable[[Say], RawServer], body: bytes, words: str
) -> None:
    def say(server: RawServer, to: socket.socket, text: str, n: int) -> bool:
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
        to.sendall(head % len(body) + body if text == "bad" else answer("good"))
        return True

    bad, good = ask_all(serve(say).url, ["bad", "good"], retries=0)
    assert good == "good"
    with pytest.raises(EvenloadError, match=words):
        raise bad
