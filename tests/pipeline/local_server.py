"""A server of HTTP on this machine, for tests to say what it answers."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

__all__ = ["Answers", "LocalServer"]


class LocalServer(ThreadingHTTPServer):
    """A server at a free port, which serves in a thread while a block lasts."""

    daemon_threads = True

    def __init__(self, answers: type["Answers"]):
        super().__init__(("127.0.0.1", 0), answers)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that left or was killed

    @contextmanager
    def serving(self) -> Iterator[Self]:
        with self:
            thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            yield self
            self.shutdown()
            thread.join(timeout=500)


class Answers(BaseHTTPRequestHandler):
    """What is answered, without a word on stderr."""

    protocol_version = "HTTP/1.1"
    server: Any

    def log_message(self, *args: Any) -> None:
        pass

    def read(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"]))

    def say(self, code: int, content: bytes = b"", *, reason: str | None = None, **headers: str) -> None:
        self.send_response(code, reason)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content if self.command != "HEAD" else b"")
