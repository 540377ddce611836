"""Counts of the proving service as Prometheus text: requests, their seconds, and all that workers do."""

from typing import Any

from evenload._optional import is_installed, require

__all__ = ["ProofMetrics"]

SECONDS = (0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)


class ProofMetrics:
    """A count of requests by key and status, beside the executor's own metrics.

    Without prometheus-client nothing is counted, and ``page`` raises MissingExtra.
    """

    def __init__(self) -> None:
        self.sink: Any = None
        if not is_installed("prometheus_client"):
            return
        import prometheus_client as client

        from evenload.report.metrics import Metrics

        self.sink = Metrics()
        registry = self.sink.registry
        self._requests = client.Counter(
            "evenload_proof_requests", "Requests for a proof.", ("key", "status"), registry=registry
        )
        self._seconds = client.Histogram(
            "evenload_proof_request_seconds",
            "Seconds from a request to its answer.",
            ("key",),
            registry=registry,
            buckets=SECONDS,
        )
        self._waiting = client.Gauge(
            "evenload_proof_requests_waiting", "Requests that wait or run.", registry=registry
        )

    def count(self, key: str, status: int, took_s: float) -> None:
        """One more answer; ``key`` is a key of the service, or "" where there was none of that name."""
        if self.sink is None:
            return
        self._requests.labels(key, str(status)).inc()
        if status == 200:
            self._seconds.labels(key).observe(took_s)

    def page(self, n_waiting: int) -> tuple[bytes, str]:
        """(the text, its media type). Raises MissingExtra."""
        client: Any = require("prometheus_client", extra="metrics", why="serving metrics")
        self._waiting.set(n_waiting)
        return client.generate_latest(self.sink.registry), client.CONTENT_TYPE_LATEST
