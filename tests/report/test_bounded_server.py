"""A server that visitors who say nothing cannot keep from others."""

import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator

import pytest

from evenload.report import bounded_server
from evenload.report.bounded_server import MOST_CONNECTIONS, BoundedServer


@pytest.fixture
def server() -> Iterator[BoundedServer]:
    def application(environ: dict, start: Callable) -> list[bytes]:
        start("200 OK", [("Content-Type", "text/plain")])
        return [b"here"]

    server = BoundedServer("127.0.0.1", 0, application)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(timeout=500)


def test_half_open_connections_keep_nobody_out(
    server: BoundedServer, until: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_server._Visit, "timeout", 1000.0)  # they stay as long as they may
    silent = [socket.create_connection(server.server_address[:2]) for _ in range(3 * MOST_CONNECTIONS)]
    for one in silent[::2]:
        one.sendall(b"GET / HTTP/1.1\r\nHo")
    url = f"http://127.0.0.1:{server.server_port}/"
    with urllib.request.urlopen(url, timeout=100.0) as page:
        assert page.read() == b"here"
    until(lambda: len(server._connections) <= MOST_CONNECTIONS, "the first ones made room")
    for one in silent:
        one.close()
    until(lambda: not server._connections, "all have left")


def test_who_says_nothing_is_sent_away(
    server: BoundedServer, until: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_server._Visit, "timeout", 0.05)
    with socket.create_connection(server.server_address[:2]) as silent:
        silent.settimeout(100.0)
        assert silent.recv(1) == b""
    until(lambda: not server._connections, "nobody is left")
