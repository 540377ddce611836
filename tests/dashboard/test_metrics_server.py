"""The door of the metrics, which is that of the page (``test_rough_visitors``): its names and addresses."""

import socket
from contextlib import ExitStack

import pytest

pytest.importorskip("uvicorn", reason="needs evenload[watch]")
pytest.importorskip("prometheus_client", reason="needs evenload[watch]")

from evenload.dashboard.limited_server import parse_address
from evenload.dashboard.metrics_server import MetricsServer
from evenload.errors import ConfigError


@pytest.fixture
def server():
    with MetricsServer("127.0.0.1", 0) as server:
        yield server


@pytest.fixture
def connect(server):
    with ExitStack() as opened:
        at = ("127.0.0.1", server.port)
        yield lambda: opened.enter_context(socket.create_connection(at, timeout=100))


def status_of(connection: socket.socket, request: bytes) -> bytes:
    connection.sendall(request)
    return connection.recv(65536).split(b" ", 2)[1]


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
