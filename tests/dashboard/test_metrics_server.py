"""The door of the metrics: who says nothing, asks by a foreign name or sends too much keeps nobody out."""

import socket
import urllib.request
from collections.abc import Callable
from contextlib import suppress

import pytest

pytest.importorskip("uvicorn", reason="needs evenload[watch]")
pytest.importorskip("prometheus_client", reason="needs evenload[watch]")

from evenload.dashboard import limited_server
from evenload.dashboard.limited_server import MOST_WAITING, parse_address
from evenload.dashboard.metrics_server import MetricsServer
from evenload.errors import ConfigError

Connect = Callable[[], socket.socket]


@pytest.fixture
def server():
    with MetricsServer("127.0.0.1", 0) as server:
        yield server


@pytest.fixture
def connect(server):
    opened = []

    def make() -> socket.socket:
        opened.append(socket.create_connection(("127.0.0.1", server.port), timeout=100))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def status_of(connection: socket.socket, request: bytes) -> bytes:
    connection.sendall(request)
    return connection.recv(65536).split(b" ", 2)[1]


def is_served(server: MetricsServer) -> bool:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=100) as answer:
        return b"evenload_" in answer.read()


def test_half_open_connections_keep_nobody_out(server, connect, monkeypatch):
    monkeypatch.setattr(limited_server, "REQUEST_S", 1000.0)  # they stay as long as they may
    oldest = connect()
    for number in range(3 * MOST_WAITING):
        connect().sendall((b"", b"GET / HTTP/1.1\r\nHo")[number % 2])
    assert is_served(server)
    with suppress(ConnectionError):
        assert oldest.recv(1) == b""


def test_who_says_nothing_is_sent_away(server, connect, monkeypatch):
    monkeypatch.setattr(limited_server, "REQUEST_S", 0.05)
    with suppress(ConnectionError):
        assert connect().recv(1) == b""
    monkeypatch.setattr(limited_server, "REQUEST_S", 100.0)
    assert is_served(server)


def test_a_page_elsewhere_cannot_read_them_through_a_name_that_leads_here(connect):
    """DNS rebinding: a browser sends the foreign name as Host."""
    assert status_of(connect(), b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n") == b"421"
    assert status_of(connect(), b"GET /metrics HTTP/1.1\r\nHost: localhost:1\r\n\r\n") == b"200"


def test_other_machines_may_know_this_one_by_any_name():
    with (
        MetricsServer("0.0.0.0", 0) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=100) as one,
    ):
        assert status_of(one, b"GET /metrics HTTP/1.1\r\nHost: node7:9464\r\n\r\n") == b"200"


def test_a_head_without_end_is_refused(server, connect):
    one = connect()
    with suppress(ConnectionError):  # the answer may be lost to what is still being sent
        assert status_of(one, b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * (1 << 20)) == b"400"
    assert is_served(server)


def test_addresses():
    assert parse_address("9464", "") == ("127.0.0.1", 9464)
    assert parse_address("0.0.0.0:0", "") == ("0.0.0.0", 0)
    assert parse_address("[::1]:80", "") == ("::1", 80)
    for bad in ("", "x", "70000", "1.2.3.4", "-1", "\u0663"):
        with pytest.raises(ConfigError, match="is no address"):
            parse_address(bad, "")


def test_a_taken_port_is_said(server):
    with pytest.raises(ConfigError, match="cannot be used"), MetricsServer("127.0.0.1", server.port):
        pass
