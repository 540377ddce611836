"""Flower's ClientApp, unmodified, on evenload's executor.

    with device_grid(client_app, 100, devices="cuda:0,1") as grid:      # in the ServerApp of `flwr run`
        strategy.start(grid=grid, ...)
    run_simulation(server_app, client_app, num_supernodes=100)          # in a script

    ServerApp ──messages──► ExecutorGrid ──map──► one worker per device runs ClientApp ──replies──► ServerApp

Flower sends messages to a *grid* and asks it for replies; its own simulation answers with Ray actors. Here
they are items of ``Executor.map``: dealt by measured device speed, with a crash costing one client's reply
and not the run. What a client keeps in its ``context`` stays with the client between rounds, whichever worker
it runs on. ``make test-flower`` names the versions of ``flwr`` that this is tested with.
"""

import contextlib
import functools
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from evenload._optional import require
from evenload.errors import ConfigError, TaskError
from evenload.executor import Executor

WHY = "running Flower's apps"
_app: Any = require("flwr.app", extra="flower", why=WHY)
_serverapp: Any = require("flwr.serverapp", extra="flower", why=WHY)
_run: Any = require("flwr.supercore.run", extra="flower", why=WHY)
_constant: Any = require("flwr.common.constant", extra="flower", why=WHY)
_identity: Any = require("flwr.supercore.task_identity", extra="flower", why=WHY)

FIRST_NODE = 1 << 32  # so that no id is one that Flower keeps for its server


class ClientRunner:
    """The ClientApp in a worker: (position, message, context) -> (position, reply, context)."""

    def __init__(self, client_app: Callable[[Any, Any], Any]):
        self._client_app = client_app

    def __call__(self, sent: tuple[int, Any, Any]) -> tuple[int, Any, Any]:
        place, message, context = sent
        return place, self._client_app(message, context), context


class ExecutorGrid(_serverapp.Grid):
    """A ``Grid`` of Flower over an executor.

    Every client has a node id that follows from its number; ``get_node_ids`` gives them in order, and replies
    come in the order of their messages, so that sums do not depend on who was faster. A client whose app
    raises, or whose worker dies, is answered for with Flower's own error message, which its strategies count
    as a failure.
    """

    def __init__(
        self,
        executor: Executor,
        runner: Callable[..., Any],
        num_supernodes: int,
        run_config: Mapping[str, Any] | None = None,
    ):
        self._executor, self._runner = executor, runner
        self._own_run = _run.Run.create_empty(run_id=1)
        self._contexts = {
            FIRST_NODE + at: _app.Context(
                run_id=1,
                node_id=FIRST_NODE + at,
                node_config={"partition-id": at, "num-partitions": num_supernodes},
                state=_app.RecordDict(),
                run_config=dict(run_config or {}),
            )
            for at in range(num_supernodes)
        }
        self._order: dict[str, int] = {}  # message id -> its turn, while its reply is wanted
        self._replies: dict[str, Any] = {}
        self._n_sent = 0
        self._one_at_a_time = threading.Lock()
        self._news = threading.Condition()
        self._failure: BaseException | None = None

    def set_run(self, run: Any) -> None:
        self._own_run = run

    @property
    def run(self) -> Any:
        return self._own_run

    def create_message(
        self, content: Any, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Any:
        return _app.Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        """Begin to run the messages' clients; returns the messages' ids.

        Raises ConfigError for a node that is not there.
        """
        batch = list(messages)
        for message in batch:
            node = message.metadata.dst_node_id
            if node not in self._contexts:
                raise ConfigError(
                    f"a message for node {node}, but there are only {len(self._contexts)} nodes",
                    hint="send to what grid.get_node_ids() returns",
                )
            message.metadata.__dict__["_message_id"] = str(uuid.uuid4())
        with self._news:
            for message in batch:
                self._n_sent += 1
                self._order[message.metadata.message_id] = self._n_sent
        threading.Thread(target=self._answer, args=(batch,), name="evenload-flower", daemon=True).start()
        return [message.metadata.message_id for message in batch]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Any]:
        """Take the replies that have come, each once. Raises what the executor failed with."""
        with self._news:
            return self._take(set(message_ids))

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> list[Any]:
        """Send and wait for all replies; after ``timeout`` seconds for no more, and later ones are lost."""
        ids = self.push_messages(messages)
        until = None if timeout is None else time.monotonic() + timeout
        with self._news:
            while self._failure is None and not self._replies.keys() >= set(ids):
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._news.wait(left)
            replies = self._take(set(ids))
            for one in ids:
                self._order.pop(one, None)
            return replies

    def _take(self, ids: set[str]) -> list[Any]:
        if self._failure is not None:
            raise self._failure
        there = sorted(ids & self._replies.keys(), key=lambda one: self._order[one])
        replies = [self._replies.pop(one) for one in there]
        for one in there:
            del self._order[one]
        return replies

    def _answer(self, batch: list[Any]) -> None:
        contexts = [self._contexts[message.metadata.dst_node_id] for message in batch]
        sent = [
            (at, message, context) for at, (message, context) in enumerate(zip(batch, contexts, strict=True))
        ]
        stage = batch[0].metadata.message_type if batch else "flower"
        try:
            with self._one_at_a_time:  # rounds follow one another: what a client keeps is what it kept last
                self._collect(batch, sent, stage)
        except BaseException as error:
            with self._news:
                self._failure = error
                self._news.notify_all()

    def _collect(self, batch: list[Any], sent: list[tuple[int, Any, Any]], stage: str) -> None:
        results = self._executor.map(
            self._runner, sent, on_error="return", ordered=False, stage=stage, progress=False
        )
        for result in results:
            at: Any = result.index if isinstance(result, TaskError) else result[0]
            reply = self._reply(batch[at], result)
            with self._news:
                if batch[at].metadata.message_id in self._order:
                    self._replies[batch[at].metadata.message_id] = reply
                    self._news.notify_all()

    def _reply(self, message: Any, result: Any) -> Any:
        if not isinstance(result, TaskError):
            _, reply, self._contexts[message.metadata.dst_node_id] = result
            return reply
        cause = result.__cause__
        reason = f"{type(cause).__name__}: {cause}" if cause is not None else str(result)
        code = _constant.ErrorCode.CLIENT_APP_RAISED_EXCEPTION
        return _app.Message(_app.Error(code=code, reason=reason), reply_to=message)


@contextlib.contextmanager
def device_grid(
    client_app: Any,
    num_supernodes: int,
    *,
    devices: Any = "all",
    backend: str = "process",
    policy: Any = "measured",
    run_config: Mapping[str, Any] | None = None,
) -> Iterator[ExecutorGrid]:
    """Make the grid whose ``num_supernodes`` clients run on evenload's devices, for a ServerApp's strategy.

    client_app               the ClientApp, imported from its module (NumPyClient included)
    devices, backend, policy what the clients run on and how they are dealt, as ``evenload.map`` takes it
    run_config               what ``context.run_config`` holds for the clients: the server's own, as a rule

    Threads and the visible GPU are set for each worker. Raises ConfigError for fewer than one client.
    """
    if num_supernodes < 1:
        raise ConfigError(f"num_supernodes={num_supernodes}: there is nobody to train", hint="give 1 or more")
    with Executor(devices, backend=backend, policy=policy) as executor:
        yield ExecutorGrid(executor, functools.partial(ClientRunner, client_app), num_supernodes, run_config)


def run_simulation(
    server_app: Any,
    client_app: Any,
    num_supernodes: int,
    *,
    run_config: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Run a ServerApp and a ClientApp (NumPyClient included) with ``num_supernodes`` virtual clients.

    ``run_config`` and ``options`` are those of ``device_grid``. Returns the server's context. Raises
    ConfigError for fewer than one client, and whatever the server app raises.
    """
    with device_grid(client_app, num_supernodes, run_config=run_config, **options) as grid:
        context = _app.Context(
            run_id=1,
            node_id=0,
            node_config={},
            state=_app.RecordDict(),
            run_config=dict(run_config or {}),
        )
        # Messages take their sender from here.
        _identity.TaskIdentity.task_id = 1
        _identity.TaskIdentity.run_id = grid.run.run_id
        _identity.TaskIdentity.node_id = _constant.SUPERLINK_NODE_ID
        server_app(grid, context)
        return context
