"""Visitors that send anything, or nothing, or never read: they are answered or let go, and others served."""

import random
import socket
import threading
from contextlib import ExitStack, suppress
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("uvicorn", reason="the live page needs evenload[watch]")

from evenload.dashboard import Address, app, limited_server

N_REQUESTS = 200
OURS = {100, 200, 303, 400, 401, 403, 404, 405, 409, 413, 414, 415, 421, 431, 501, 503}
TOKEN = "a-token-of-our-own"


@pytest.fixture
def page(write_run, serve_run, sample_run):
    with serve_run(write_run(sample_run(n_items=3))) as url:
        yield url


@pytest.fixture
def connect(page):
    """Connections to the page, closed when the test ends."""
    at = urlsplit(page)
    with ExitStack() as opened:
        address = (at.hostname, at.port)
        yield lambda: opened.enter_context(socket.create_connection(address, timeout=100))


@pytest.fixture
def ask(connect):
    """``ask(request)`` is a connection on which ``request`` is answered, and the begin of the answer.

    The time that a request has may be over before this process has its turn to send it: then again."""

    def make(request: bytes) -> tuple[socket.socket, bytes]:
        while True:
            one = connect()
            with suppress(ConnectionError):
                one.sendall(request)
                if begin := one.recv(65536):
                    return one, begin

    return make


def ended(connection: socket.socket) -> bool:
    """Wait for the other end to close; what it sends meanwhile is read."""
    with suppress(ConnectionError):
        while connection.recv(65536):
            pass
    return True


BROKEN = (
    "http://[::1", "http://[v1.x]", "http://a b", "http://127.0.0.1:port", "http://127.0.0.1:99999999",
    "http://", "://", "", "http:///", "http://user@127.0.0.1", "http://127.0.0.1/path", "h\xe9://x", "\xff",
)  # fmt: skip
OF_OTHERS = ("null", "https://evil.example", "chrome-extension://abc", "http://127.0.0.1:1")
ODD_HOSTS = (
    "user@127.0.0.1", "user:word@127.0.0.1", "@127.0.0.1", "127.0.0.1@evil.example", "127.0.0.1/x",
    "127.0.0.1?x", "127.0.0.1#x", "127.0.0.1:", "127.0.0.1:80:80", "127.0.0.1:80x", "[::1", "[::1]x", "::1",
    "[127.0.0.1", "127.0.0.1, evil.example", "127.0.0.1%00", "localhost\\evil", "l\xf6calhost",
    "%31%32%37.0.0.1",
)  # fmt: skip


def test_an_origin_that_is_broken_or_of_others_is_refused(page, get):
    for status, origins in ((400, BROKEN), (403, OF_OTHERS)):
        for origin in origins:
            assert get(page + "timeline", Origin=origin)[0] == status, origin
            assert get(page + "control", method="POST", body=b"{}", Origin=origin)[0] == status, origin


def test_odd_hosts_are_refused(page, get):
    for host in ODD_HOSTS:
        assert get(page, Host=host)[0] == 421, host


def test_a_second_origin_is_looked_at_too(page, connect):
    port = urlsplit(page).port
    one = connect()
    head = f"GET /timeline HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n"
    one.sendall(f"{head}Origin: http://127.0.0.1:{port}\r\nOrigin: http://evil.example\r\n\r\n".encode())
    assert one.recv(100).startswith(b"HTTP/1.1 403")


def test_the_path_cannot_write_headers(write_run, serve_run, sample_run, get):
    with serve_run(write_run(sample_run(n_items=3)), Address(port=0, token=TOKEN)) as url:
        home = url.partition("?")[0]
        for path in ("%0d%0aX-Evil:%201", "%0aSet-Cookie:a", "%c3%a9", "%ff", "%00"):
            status, headers, _ = get(f"{home}{path}?token={TOKEN}")
            assert (status, unquote(headers["location"])) == (303, unquote(f"/{path}"))
            assert not {"x-evil", "set-cookie2"} & {name.lower() for name in headers}
            assert all(TOKEN in one for one in headers.get_all("set-cookie"))


class Fuzzer:
    """A source of requests that are almost, or not at all, what a browser sends."""

    def __init__(self, seed: int, port: int):
        self._random = random.Random(seed)
        self._port = port

    def _pick(self, *choices: bytes) -> bytes:
        return self._random.choice(choices)

    def _noise(self) -> bytes:
        return self._random.randbytes(self._random.randrange(30))

    def _host(self) -> bytes:
        good = f"127.0.0.1:{self._port}".encode()
        return self._pick(good, good, b"user@" + good, b"evil", b"", b"[::1", self._noise(), b"[" * 9)

    def _header(self) -> bytes:
        return self._pick(
            b"Origin: " + self._pick(b"null", b"http://[", b"http://" + self._host(), self._noise()),
            b"Cookie: evenload_token=" + self._noise(),
            b"Cookie: " + b";=" * self._random.randrange(1000),
            b"Content-Length: " + self._pick(b"0", b"5", b"-1", b"9" * 30, b"5000", b"x"),
            b"Transfer-Encoding: " + self._pick(b"chunked", b"gzip", b"identity"),
            b"Content-Type: application/json",
            b"Upgrade: websocket\r\nConnection: upgrade",
            b"Expect: 100-continue",
            b"Sec-Fetch-Site: " + self._pick(b"cross-site", b"same-origin", self._noise()),
            b"X" * self._random.choice([1, 10_000, 40_000]) + b": y",
            self._noise(),
        )

    def request(self) -> bytes:
        method = self._pick(*b"GET GET POST HEAD PUT get OPTIONS PRI".split(), self._noise())
        path = self._pick(
            *b"/ /stream /timeline?from=0&to=1 /control * //evil/ http://evil/".split(),
            b"/timeline?from=" + self._noise().hex().encode() + b"&to=%",
            b"/picture/" + b"9" * self._random.choice([1, 3900]),
            b"/%2e%2e/" + b"a" * self._random.choice([1, 5_000, 20_000]),
            self._noise(),
        )
        version = self._pick(b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9", self._noise())
        lines = [b" ".join((method, path, version)), b"Host: " + self._host()]
        lines += [self._header() for _ in range(self._random.randrange(5))]
        end = self._pick(b"\r\n\r\n", b"\r\n\r\n", b"\r\n\r\n", b"\n\n", b"")
        body = self._pick(b"", b"{}", b"[" * 5000, b"5\r\nhello\r\n0\r\n\r\n", self._noise(), b"ffffffff\r\n")
        whole = b"\r\n".join(lines) + end + body
        return whole if self._random.random() < 0.8 else whole[: self._random.randrange(len(whole) + 1)]


def status_of(connection: socket.socket, request: bytes) -> int | None:
    """The status of the first answer, if there is one; nothing more is sent after the request."""
    with suppress(ConnectionError):
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        if answer := connection.recv(65536):
            assert answer.startswith(b"HTTP/1."), answer[:80]
            return int(answer.split(b" ", 2)[1])
    return None


@pytest.mark.parametrize("seed", range(2))
def test_whatever_is_sent_the_answer_is_one_of_ours(page, get, connect, capfd, seed, monkeypatch):
    monkeypatch.setattr(limited_server, "REQUEST_S", 0.3)
    fuzzer = Fuzzer(seed, urlsplit(page).port or 0)
    seen = set()
    for number in range(N_REQUESTS):
        request = fuzzer.request()
        connection = connect()
        status = status_of(connection, request)
        assert status is None or status in OURS, (seed, number, request[:300], status)
        seen.add(status)
        connection.close()
    monkeypatch.setattr(limited_server, "REQUEST_S", 100.0)
    assert get(page)[0] == 200
    assert {400, 421} < seen, "the requests are of many kinds"
    assert capfd.readouterr().err == "", "no visitor writes into the terminal of the run"


def test_half_open_connections_keep_nobody_out(page, get, connect):
    """Many more than there may be, silent or in the middle of a request: each newer one is let in."""
    port = urlsplit(page).port
    head = f"POST /control HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 9\r\n\r\n".encode()
    for number in range(3 * limited_server.MOST_WAITING):
        one = connect()
        one.sendall((b"", b"GET / HT", head, head + b"{")[number % 4])
    assert get(page)[0] == 200
    assert get(page + "timeline")[0] == 200


def test_a_request_that_does_not_end_ends_its_connection(monkeypatch, page, connect):
    monkeypatch.setattr(limited_server, "REQUEST_S", 0.05)
    head = b"HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    for sent in (b"", b"GET / " + head, b"POST /control " + head + b"Content-Length: 9\r\n\r\n{"):
        one = connect()
        with suppress(ConnectionError):  # it may have ended by now
            one.sendall(sent)
        assert ended(one)


def test_a_drop_now_and_then_is_no_request(monkeypatch, page, ask):
    """Also after an answer, where the time that a kept connection has would begin anew with each byte."""
    monkeypatch.setattr(limited_server, "REQUEST_S", 0.2)
    one, answer = ask(b"GET /picture/7 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 404")
    over = threading.Event()
    with suppress(ConnectionError):
        while not over.wait(0.02):  # as a visitor does who never ends: the loop ends when the page closes
            one.sendall(b"G")
    assert ended(one)


def test_who_does_not_read_is_let_go(monkeypatch, page, connect, get):
    monkeypatch.setattr(limited_server, "STALL_S", 0.05)
    one = connect()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    request = b"GET /report.html HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with suppress(ConnectionError):  # it ends while there are more answers than anybody takes
        while True:
            one.sendall(request)
    monkeypatch.setattr(limited_server, "STALL_S", 100.0)
    assert get(page)[0] == 200


def test_a_viewer_that_only_reads_stays(monkeypatch, page, ask):
    """A stream has no end: the time that a request has does not count for its answer."""
    monkeypatch.setattr(limited_server, "REQUEST_S", 0.05)
    monkeypatch.setattr(app, "HEARTBEAT_S", 1.0)
    one, seen = ask(b"GET /stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    while b": still here" not in seen:  # sent to who has every frame
        piece = one.recv(65536)
        assert piece, "the stream goes on"
        seen = seen[-20:] + piece
