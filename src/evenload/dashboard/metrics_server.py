"""The server of a run's metrics.

with MetricsServer("127.0.0.1", 9464) as server: EventLog(server.sink)
"""

import threading

from evenload._closing import Closing
from evenload._optional import require
from evenload.dashboard.guard import Guard, is_loopback
from evenload.report.metrics import Metrics

__all__ = ["MetricsServer"]


class MetricsServer(Closing):
    """A server of ``sink.registry`` under ``/metrics`` in a thread of its own until ``close()``.

    ``port`` 0 takes any; ``self.port`` is the one that was taken. Raises ConfigError if it cannot be bound,
    MissingExtra without prometheus-client or uvicorn.
    """

    def __init__(self, host: str, port: int) -> None:
        self.sink = Metrics()
        require("uvicorn", extra="watch", why="serving metrics")
        from prometheus_client import make_asgi_app

        from evenload.dashboard.limited_server import limited_server, listen

        self._socket = listen(host, port, "choose another --metrics-port")
        self.port: int = self._socket.getsockname()[1]
        # Where other machines ask, they may know this one by any name.
        app = Guard(make_asgi_app(self.sink.registry), host if is_loopback(host) else "0.0.0.0", None)
        self._server = limited_server(app, limit_concurrency=256, timeout_graceful_shutdown=1)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="evenload-metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(5.0)
        self._socket.close()
