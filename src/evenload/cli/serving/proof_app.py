"""The addresses of the proving service: proofs, keys, health, metrics. JSON over HTTP."""

import asyncio
import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from evenload._bounded_json import parse_json
from evenload._optional import is_installed, require
from evenload._private_files import read_plain
from evenload.dashboard.guard import Guard
from evenload.errors import (
    ConfigError,
    EvenloadError,
    ExecutorClosed,
    FormatError,
    TaskError,
    TaskTimeout,
    UnknownName,
    WorkerLost,
    quoted,
)
from evenload.zk.groth16 import public_from_json
from evenload.zk.proof_service import Busy, ProofService
from evenload.zk.worker import InvalidProof

MOST_PATH_BYTES = 10_000_000  # of a request that names a file, and may list public inputs


@dataclass(frozen=True, slots=True)
class Rules:
    """The terms of a service: a token that is asked for (None: none), the largest witness that is taken, the
    folder in which requests may name files (None: nowhere)."""

    token: str | None
    most_bytes: int
    folder: Path | None


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
        client: Any = require("prometheus_client", extra="watch", why="serving metrics")
        self._waiting.set(n_waiting)
        return client.generate_latest(self.sink.registry), client.CONTENT_TYPE_LATEST


def make_app(service: ProofService, rules: Rules, metrics: ProofMetrics, host: str) -> Guard:
    """The application; ``host`` is what it is bound to, "localhost" for a socket file."""
    answers = _Answers(service, rules, metrics)
    routes = [
        Route("/prove/{key}", answers.prove, methods=["POST"]),
        Route("/keys", answers.keys, methods=["GET"]),
        Route("/keys/{key}/vkey.json", answers.verification_key, methods=["GET"]),
        Route("/health", answers.health, methods=["GET"]),
        Route("/metrics", answers.metrics, methods=["GET"]),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _no_such_address})
    return Guard(_TokenGate(app, rules.token), host, None, page=_page_of)


class _TokenGate:
    """A gate that asks for ``Authorization: Bearer TOKEN``; None asks for nothing."""

    def __init__(self, app: Any, token: str | None):
        self._app, self._token = app, token

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._token is not None:
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not secrets.compare_digest(given, f"Bearer {self._token}".encode()):
                why = "send the token that was printed: Authorization: Bearer TOKEN"
                refusal = _refusal(401, "no valid token", why, {"www-authenticate": "Bearer"})
                return await refusal(scope, receive, send)
        await self._app(scope, receive, send)


class _TooLarge(EvenloadError):
    """A body beyond its limit."""


class _Answers:
    """The answers of the service, by address."""

    def __init__(self, service: ProofService, rules: Rules, metrics: ProofMetrics):
        self._service, self._rules, self._metrics = service, rules, metrics
        self._vkeys: dict[str, str] = {}

    async def prove(self, request: Request) -> Response:
        started, name = time.monotonic(), request.path_params["key"]
        try:
            self._service.key(name)
            with self._service.admitted():  # before the body is read: what waits is bounded
                page, status = await self._proved(request, name), 200
                answer: Response = JSONResponse(page)
        except Exception as error:
            answer = _answer_to(error)
            status = answer.status_code
            if status == 404:
                name = ""
        self._metrics.count(name, status, time.monotonic() - started)
        return answer

    async def _proved(self, request: Request, name: str) -> dict[str, Any]:
        witness, public = await self._statement(request)
        done = await asyncio.wrap_future(self._service.submit(name, witness, public))
        statement = done.statement
        return {
            "schema": 1,
            "key": name,
            "proof": json.loads(statement.proof.to_json()),
            "public": [str(value) for value in statement.public],
            "stages_s": {stage: round(seconds, 6) for stage, seconds in statement.stages.items()},
        }

    async def _statement(self, request: Request) -> tuple[bytes, Sequence[int] | None]:
        """The bytes of a witness, and the public inputs that are expected."""
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            return await _body(request, self._rules.most_bytes), None
        given = parse_json(await _body(request, MOST_PATH_BYTES), "the request")
        if not isinstance(given, dict) or not {"path"} <= set(given) <= {"path", "public"}:
            raise FormatError(
                f"the request has {quoted(sorted(given) if isinstance(given, dict) else given)}",
                hint='send {"path": "NAME.wtns"}, perhaps with "public": ["1", ...], or the bytes of a .wtns',
            )
        public = public_from_json(json.dumps(given["public"])) if "public" in given else None
        return await run_in_threadpool(self._read, given["path"]), public

    def _read(self, given: Any) -> bytes:
        """A file of the folder that requests may name. Raises FormatError, OSError."""
        folder = self._rules.folder
        if folder is None:
            raise FormatError("witnesses are not read from files here", hint="send the bytes of the .wtns")
        if not isinstance(given, str) or "\0" in given or len(given) > 4000:
            raise FormatError(f"{quoted(given)} is no path")
        try:
            path = (folder / given).resolve()
        except (OSError, RuntimeError, ValueError):  # links in a circle; what is no text of the file system
            raise FormatError(f"{quoted(given)} is no path") from None
        if not path.is_relative_to(folder):
            raise FormatError(f"{quoted(given)} leads out of the folder of witnesses")
        try:
            return read_plain(path, self._rules.most_bytes)
        except OSError as error:
            raise FormatError(f"{quoted(given)} cannot be read: {error.strerror}") from None

    async def keys(self, request: Request) -> Response:
        rows = [
            {"name": key.name, "sha256": key.sha256, "wires": key.n_vars, "public": key.n_public}
            for key in self._service.keys.values()
        ]
        return JSONResponse({"schema": 1, "keys": rows})

    async def verification_key(self, request: Request) -> Response:
        name = request.path_params["key"]
        try:
            key = self._service.key(name)
        except UnknownName as error:
            return _answer_to(error)
        if name not in self._vkeys:  # a pairing in plain Python
            self._vkeys[name] = await run_in_threadpool(key.verification_key.to_json)
        return Response(self._vkeys[name], media_type="application/json")

    async def health(self, request: Request) -> Response:
        service = self._service
        page = {"schema": 1, "workers": service.n_workers, "waiting": service.n_waiting, "pids": service.pids}
        return JSONResponse(page)

    async def metrics(self, request: Request) -> Response:
        try:
            content, kind = self._metrics.page(self._service.n_waiting)
        except EvenloadError as error:
            return _refusal(501, error.message, error.hint)
        return Response(content, media_type=kind)


async def _body(request: Request, most_bytes: int) -> bytes:
    pieces, n_bytes = [], 0
    declared = int(request.headers.get("content-length", "0"))  # digits: h11 refuses anything else
    if declared > 4 * most_bytes:  # not heard out anyway
        raise _too_large(most_bytes)
    async for piece in request.stream():
        n_bytes += len(piece)
        if n_bytes <= most_bytes:
            pieces.append(piece)
        elif n_bytes > 4 * most_bytes:  # a little more is heard out, so that the answer is read
            break
    if n_bytes > most_bytes:
        raise _too_large(most_bytes)
    return b"".join(pieces)


def _too_large(most_bytes: int) -> _TooLarge:
    return _TooLarge(f"the body has more than {most_bytes:,} bytes", hint="see --most-witness")


def _answer_to(error: Exception) -> Response:
    """The status and the sentence of an error."""
    cause = error.__cause__ if isinstance(error, TaskError) and error.__cause__ is not None else error
    if isinstance(cause, Busy):
        return _refusal(503, cause.message, cause.hint, {"retry-after": str(cause.retry_after_s)})
    if isinstance(cause, ExecutorClosed | WorkerLost):
        return _refusal(503, cause.message, "send it again", {"retry-after": "1"})
    if isinstance(cause, TaskTimeout):
        why = "the proof took longer than the service allows; its worker was replaced"
        return _refusal(504, why, "evenload zk serve ... --limit SECONDS allows more")
    statuses = {UnknownName: 404, _TooLarge: 413, InvalidProof: 422, FormatError: 400, ConfigError: 400}
    status = next((status for kind, status in statuses.items() if isinstance(cause, kind)), 500)
    if isinstance(cause, EvenloadError):
        return _refusal(status, cause.message, cause.hint)
    return _refusal(500, f"the proof failed: {type(cause).__name__}", None)


def _no_such_address(request: Request, error: Any) -> Response:
    hint = "POST /prove/KEY; GET /keys, /keys/KEY/vkey.json, /health, /metrics"
    why = "no such address" if error.status_code == 404 else f"{quoted(request.method)} is not answered here"
    return _refusal(error.status_code, why, hint, error.headers)


def _page_of(why: str) -> tuple[bytes, bytes]:
    return b"application/json", bytes(_refusal(400, why, None).body)


def _refusal(status: int, why: str, hint: str | None, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"schema": 1, "error": why, "hint": hint}, status, headers)
