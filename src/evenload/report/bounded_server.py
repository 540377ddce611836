"""An HTTP server for an application of a few pages, which no visitor can keep from others."""

import contextlib
import socket
import threading
from collections import deque
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

__all__ = ["BoundedServer"]

MOST_CONNECTIONS = 32  # then the one that was opened first makes room
SILENT_S = 10.0  # a visitor who says nothing for so long is sent away


class BoundedServer(ThreadingMixIn, WSGIServer):
    """A server with a thread for each connection, of which there are few, and none lasts in silence."""

    daemon_threads = True
    request_queue_size = 64
    block_on_close = False

    def __init__(self, host: str, port: int, application: Any):
        """Raises OSError if the address cannot be had."""
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]
        self._connections: deque[socket.socket] = deque()
        self._lock = threading.Lock()
        super().__init__((host, port), _Visit)
        self.set_app(application)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._connections.append(request)
            first = self._connections.popleft() if len(self._connections) > MOST_CONNECTIONS else None
        if first is not None:
            with contextlib.suppress(OSError):  # it has ended meanwhile
                first.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._connections.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a visitor who left, was late or spoke nonsense


class _Visit(WSGIRequestHandler):
    timeout = SILENT_S

    def log_message(self, format: str, *args: Any) -> None:
        pass
