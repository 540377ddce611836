"""Ray: the same workers on every machine of a cluster, one actor per device.

    engine ──run/load/…──► RayBackend ──turns──► Guard (actor on the device's machine) ──pipes──► worker

Ray starts the actors, carries the messages and knows which machines live. Everything else is the process
back end's, at the other end (see ``ray_guard``); so faults, batches, time limits and output are the same. An
actor is never restarted by Ray: the engine decides what a lost worker means.
"""

import queue
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evenload._optional import require
from evenload.devices import Device, DevicePool
from evenload.devices.selection import Spec
from evenload.errors import ConfigError
from evenload.executor.backends import WorkerOptions
from evenload.executor.backends.ray.cluster import Cluster
from evenload.executor.backends.ray.guard import Command, Letter, Turn
from evenload.executor.backends.ray.post import Post
from evenload.executor.task.item_packing import pack_apart
from evenload.executor.task.messages import Answered, Gone, Message
from evenload.executor.task.task import Task, dump
from evenload.executor.transport.progress_cell import NOT_BEGUN, PACKING
from evenload.executor.transport.wire import Frame, hold, pack
from evenload.executor.worker import worker as protocol
from evenload.executor.worker.replies import ENDS_A_CHUNK, message_of

__all__ = ["Ray", "RayBackend"]

START_S = 30.0  # for an actor to be there; Ray waits for ever for what the cluster cannot give
PREPARE_S = 300.0  # more, if its machine has to fetch and install what the program needs
KILL_S = 5.0  # for an actor to end its worker; then it is ended itself
LEAVE_S = 1.0  # for the actors' processes to be gone
PLACE_S = 1.0
MOST_SILENT = 10  # times in a row that an actor may fail to say where its worker is


@dataclass(frozen=True, slots=True)
class Ray:
    """``backend="ray"`` with settings: ``Executor(backend=Ray(address="10.0.0.1:6379"))``.

    address         of the cluster; None: that of ``RAY_ADDRESS``, the one that runs on this machine, or a new
                    one that ends with the last executor that uses it
    runtime_env     Ray's own way to bring files, packages and variables to other machines
    reserve         take what is free in Ray's books, and enter it there; False: whoever else uses it
    min_free_bytes  a GPU with less free memory is left out, whoever uses it
    """

    address: str | None = None
    runtime_env: Mapping[str, Any] | None = None
    reserve: bool = True
    min_free_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        if self.address is not None and self.address.startswith("ray://"):
            raise ConfigError(
                f"address={self.address!r} is a Ray Client, which carries no large arrays",
                hint="run the program on a machine of the cluster, or through `ray job submit`",
            )

    def make(self, options: WorkerOptions) -> "RayBackend":
        return RayBackend(options, self)

    def beside(self) -> "Ray":
        return replace(self, reserve=False, min_free_bytes=0)

    def __str__(self) -> str:
        return "ray"


class RayBackend:
    is_threaded = True

    def __init__(self, options: WorkerOptions | None = None, settings: Ray | None = None) -> None:
        self._ray = require("ray", extra="ray", why="backend='ray'")
        self._settings = settings or Ray()
        self._options = options or WorkerOptions()
        self._cluster: Cluster | None = None
        self._posts: dict[str, Post] = {}  # by device
        self._desks: dict[int, _Desk] = {}  # by worker
        self._arrived: queue.SimpleQueue[tuple[Post, int, Any] | None] = queue.SimpleQueue()
        self._news: list[Message] = []
        self._places: dict[int, Any] = {}

    @property
    def host(self) -> str:
        return self._ray.util.get_node_ip_address()

    def devices(self, spec: Spec) -> DevicePool:
        try:
            return self._connected().devices(spec)
        except BaseException:
            self.close(0.0)
            raise

    def start(self, worker: int, device: Device, pool: DevicePool, environment: Mapping[str, str]) -> None:
        post = self._posts.get(device.id)
        if post is None or post.is_lost:
            guard = self._connected().guard(device)
            post = self._posts[device.id] = Post(
                device, guard, self._arrived, time.monotonic() + self._start_s
            )
        self._desks[worker] = desk = _Desk(post)
        desk.kill_until_s = time.monotonic() + self._start_s + KILL_S
        post.write(Command("start", (worker, device, dict(environment))))

    def load(self, worker: int, task: Task) -> None:
        body, buffers = dump(task)
        self._send(worker, Frame(protocol.LOAD, task.id, 0, body, buffers))

    def unload(self, worker: int, task: int) -> None:
        self._send(worker, Frame(protocol.UNLOAD, task))

    def run(self, worker: int, task: int, chunk: int, items: Sequence[Any], singly: bool) -> int:
        body, buffers = pack(pack_apart(items, "input") if singly else hold(items))
        frame = Frame(protocol.SINGLY if singly else protocol.RUN, task, chunk, body, buffers)
        self._desks[worker].sent_s[chunk] = time.monotonic()
        self._send(worker, frame)
        return frame.n_bytes

    def drop(self, worker: int, chunk: int) -> None:
        self._desks[worker].post.write(Command("drop", (worker, chunk)))

    def place(self, worker: int) -> tuple[int, float]:
        """Ask the actor, and all others in the same breath: who asks for one is about to ask for more."""
        if worker not in self._places:
            for other, desk in self._desks.items():
                if desk.sent_s and not desk.post.is_lost:
                    self._places[other] = desk.post.guard.place.remote(other)
        post = self._desks[worker].post
        try:
            place = self._ray.get(self._places[worker], timeout=PLACE_S)
            post.n_silent = 0
            return place
        except self._ray.exceptions.GetTimeoutError:
            post.n_silent += 1
            if post.n_silent >= MOST_SILENT:
                self._desks[worker].kill_until_s = 0.0
        except (KeyError, self._ray.exceptions.RayError):  # it has no chunk, or is no more
            pass
        return NOT_BEGUN, 0.0

    def stop(self, worker: int) -> None:
        self._send(worker, Frame(protocol.STOP))

    def kill(self, worker: int) -> None:
        desk = self._desks[worker]
        desk.post.write(Command("kill", (worker,)))
        until = time.monotonic() + KILL_S
        desk.kill_until_s = until if desk.kill_until_s is None else min(desk.kill_until_s, until)

    def poll(self, timeout_s: float | None) -> list[Message]:
        self._places.clear()
        for post in self._posts.values():
            post.flush()
        if not self._news:
            self._take(self._patience(timeout_s))
        self._end_overdue(time.monotonic())
        news, self._news = self._news, []
        return news

    def wake(self) -> None:
        self._arrived.put(None)

    def close(self, grace_s: float) -> list[Message]:
        news: list[Message] = []
        for post in self._posts.values():
            post.write(Command("close", (grace_s,)))
        until = time.monotonic() + grace_s + KILL_S
        while self._desks and time.monotonic() < until:
            news += self.poll(0.1)
        for post in self._posts.values():
            post.end()
        until = time.monotonic() + LEAVE_S
        while not all(post.is_lost for post in self._posts.values()) and time.monotonic() < until:
            news += self.poll(0.05)
        self._posts.clear()
        if self._cluster is not None:
            self._cluster.leave()
            self._cluster = None
        return news

    # --- inside -----------------------------------------------------------------------------------

    @property
    def _start_s(self) -> float:
        return START_S + (PREPARE_S if self._settings.runtime_env else 0.0)

    def _connected(self) -> Cluster:
        if self._cluster is None:
            settings = self._settings
            self._cluster = Cluster(
                settings.address,
                settings.runtime_env,
                settings.reserve,
                settings.min_free_bytes,
                replace(self._options, start=self._options.start or "spawn"),
            )
        return self._cluster

    def _send(self, worker: int, frame: Frame) -> None:
        self._desks[worker].post.write(Command("send", (Letter.of(worker, None, frame),)))

    def _take(self, timeout_s: float | None) -> None:
        """Wait for what arrives, then take all that is there."""
        try:
            arrived = self._arrived.get(timeout=timeout_s)
            while True:
                if arrived is not None:
                    post, number, answer = arrived
                    if isinstance(answer, BaseException):
                        self._lose(post, self._cause(post, answer))
                    for turn in post.take(number, answer) if not post.is_lost else ():
                        self._read(post, turn)
                arrived = self._arrived.get_nowait()
        except queue.Empty:
            pass

    def _read(self, post: Post, turn: Turn) -> None:
        for one in turn.news:
            desk = self._desks.get(one.worker)
            if desk is None:
                continue  # it was given up
            if isinstance(one, Gone):
                del self._desks[one.worker]
            self._news.append(one if not isinstance(one, Letter) else self._message(desk, one))

    def _message(self, desk: "_Desk", letter: Letter) -> Message:
        frame = letter.open(writable=True)
        message = message_of(letter.worker, letter.pid, frame)
        if frame.kind == protocol.UP:
            desk.kill_until_s = None
        if frame.kind in ENDS_A_CHUNK:
            sent_s = desk.sent_s.pop(frame.chunk)
            if isinstance(message, Answered):
                desk.post.clock.translate(message.answer, sent_s, time.monotonic())
        return message

    def _patience(self, timeout_s: float | None) -> float | None:
        dues = [desk.kill_until_s for desk in self._desks.values() if desk.kill_until_s is not None]
        dues += [post.ready_until_s for post in self._posts.values() if post.ready_until_s is not None]
        if not dues:
            return timeout_s
        left_s = max(0.0, min(dues) - time.monotonic())
        return left_s if timeout_s is None else min(timeout_s, left_s)

    def _end_overdue(self, now: float) -> None:
        for post in self._posts.values():
            if not post.is_lost and post.ready_until_s is not None and now >= post.ready_until_s:
                post.end()
                needs = self._connected().needs(post.device)
                self._lose(post, f"got no actor from Ray in {self._start_s:g} s. It needs {needs}.")
        for desk in tuple(self._desks.values()):
            if not desk.post.is_lost and desk.kill_until_s is not None and now >= desk.kill_until_s:
                desk.post.end()
                self._lose(desk.post, "was lost: its actor does not answer")

    def _lose(self, post: Post, cause: str) -> None:
        """The actor is gone, and its worker with it. What that had begun nobody knows: maybe all of it."""
        post.is_lost = True
        for worker, desk in tuple(self._desks.items()):
            if desk.post is post:
                del self._desks[worker]
                position = PACKING if desk.sent_s else NOT_BEGUN
                self._news.append(Gone(worker, None, position, cause=cause))

    def _cause(self, post: Post, error: BaseException) -> str:
        """Of Ray's page of text, the line that says what happened."""
        lines = [line.strip() for line in str(error).splitlines()]
        told = [line for line in lines if line.startswith("The actor")]
        cause = f"was lost with its Ray actor: {told[-1] if told else next(filter(None, lines), repr(error))}"
        if post.ready_until_s is not None:  # it never came
            cause = f"{cause} It needs {self._connected().needs(post.device)}."
        return cause


class _Desk:
    """A worker, seen from here: its post, and when each of the chunks that it holds was sent.

    kill_until_s   until when it must have begun, or ended; else the actor is ended
    """

    __slots__ = ("kill_until_s", "post", "sent_s")

    def __init__(self, post: Post):
        self.post = post
        self.sent_s: dict[int, float] = {}
        self.kill_until_s: float | None = None
