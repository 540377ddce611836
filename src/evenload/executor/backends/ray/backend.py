"""Ray: the same workers on every machine of a cluster, one actor per device.

    engine ──run/load/…──► RayBackend ──exchange──► WorkerActor on the device's machine ──pipes──► worker

Ray starts the actors, carries the messages and knows which machines are alive. In each actor the process
backend does the rest (see ``actor``), so faults, batches, time limits and output are the same. Ray never
restarts an actor: the engine decides what a lost worker means.
"""

import contextlib
import math
import queue
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evenload._optional import require
from evenload.devices import Device, DevicePool
from evenload.devices.selection import Spec
from evenload.errors import EvenloadError
from evenload.executor.backends import FreeMemory, WorkerOptions
from evenload.executor.backends.process import FREE_S, FrameBackend
from evenload.executor.backends.ray.actor import ActorCommand, ExchangeReply, RayFrame, boot_id
from evenload.executor.backends.ray.cluster import Cluster, ClusterSettings, NodeWatch
from evenload.executor.task.answer import Answer
from evenload.executor.task.messages import Answered, Gone, Message, Untrue
from evenload.executor.transport.progress_cell import NOT_BEGUN, PACKING
from evenload.executor.transport.wire import Frame, ProtocolViolation
from evenload.executor.worker import protocol
from evenload.executor.worker.program_settings import ProgramSettings
from evenload.executor.worker.replies import message_of

START_S = 30.0  # for an actor to start; Ray waits for ever for resources that the cluster lacks
PREPARE_S = 300.0  # in addition, if its machine has to fetch and install a runtime_env
KILL_S = 5.0  # for an actor to kill its worker; then the actor is killed
LEAVE_S = 1.0  # for the actors' processes to end
POSITION_S = 1.0
MOST_EXCHANGES = 4  # under way with an actor; each holds a thread of it until the next has come
MOST_UNANSWERED = 10  # times in a row that an actor may fail to tell its worker's position


@dataclass(frozen=True, slots=True)
class Ray(ClusterSettings):
    """The settings of ``backend="ray"``: ``Executor(backend=Ray(address="10.0.0.1:6379"))``.

    address         of the cluster; None: that of ``RAY_ADDRESS``, the one that runs on this machine, or a new
                    one that ends with the last executor that uses it
    runtime_env     Ray's own way to bring files, packages and variables to other machines
    reserve         use only devices that Ray lists as free, and reserve them there; False: use any
    min_free_bytes  a GPU with less free memory is left out, whoever uses it
    """

    def make(self, options: WorkerOptions) -> "RayBackend":
        return RayBackend(options, self)

    def beside(self) -> "Ray":
        return replace(self, reserve=False, min_free_bytes=0)

    def __str__(self) -> str:
        return "ray"


class ActorChannel:
    """A channel to one actor: commands are written, and sent with the next ``flush``.

    At least one exchange is always under way, so that the actor can report at any time.
    n_unanswered       times in a row that it did not say where its worker is
    ready_until_s  until when its first answer must be here; None: it has come
    """

    def __init__(self, device: Device, actor: Any, arrived: queue.SimpleQueue, ready_until_s: float):
        self.device = device
        self.actor = actor
        self.clock = Clock()
        self.is_lost = False
        self.n_unanswered = 0
        self.ready_until_s: float | None = ready_until_s
        self._arrived = arrived
        self._commands: list[ActorCommand] = []
        self._sent_s: dict[int, float] = {}
        self._early: dict[int, ExchangeReply] = {}
        self._n_sent = self._n_taken = 0
        actor.hello.remote().future().add_done_callback(lambda future: self._deliver(-1, future))

    def write(self, command: ActorCommand) -> None:
        self._commands.append(command)

    def flush(self) -> None:
        under_way = self._n_sent - self._n_taken
        if self.is_lost or under_way >= MOST_EXCHANGES or (under_way and not self._commands):
            return
        number, self._n_sent = self._n_sent, self._n_sent + 1
        commands, self._commands = self._commands, []
        self._sent_s[number] = time.monotonic()
        self.actor.exchange.remote(number, commands).future().add_done_callback(
            lambda future: self._deliver(number, future)
        )

    def take(self, number: int, answer: Any) -> list[ExchangeReply]:
        """Take in a reply that has arrived; returns those that are next in order."""
        if number < 0:
            self.ready_until_s = None
            self.clock.is_ours = answer["boot"] == boot_id()
            return []
        self.clock.hear(self._sent_s.pop(number), answer, time.monotonic())
        self._early[number] = answer
        replies = []
        while self._n_taken in self._early:
            replies.append(self._early.pop(self._n_taken))
            self._n_taken += 1
        return replies

    def end(self) -> None:
        """Have Ray kill the actor, and with it the worker."""
        import ray

        ray.kill(self.actor, no_restart=True)

    def _deliver(self, number: int, future: Any) -> None:
        """Put a reply into the queue; called in a thread of Ray."""
        error = future.exception()
        self._arrived.put((self, number, future.result() if error is None else error))


class Clock:
    """An estimate of how far the actor's clock is behind this process's.

    A message leaves before it arrives, so each exchange gives a lower and an upper bound.
    """

    def __init__(self) -> None:
        self.is_ours = False  # the same machine, the same clock
        self._least_s, self._most_s = -math.inf, math.inf

    def hear(self, sent_s: float, reply: ExchangeReply, heard_s: float) -> None:
        least_s, most_s = sent_s - reply.came_s, heard_s - reply.left_s
        if least_s <= self._most_s and most_s >= self._least_s:
            least_s, most_s = max(least_s, self._least_s), min(most_s, self._most_s)
        # Where they contradict, the clocks have drifted: the last exchange is taken.
        self._least_s, self._most_s = least_s, most_s

    @property
    def behind_s(self) -> float:
        if self.is_ours or math.isinf(self._least_s):
            return 0.0
        return (self._least_s + self._most_s) / 2

    def translate(self, answer: Answer, sent_s: float, heard_s: float) -> None:
        """Convert an answer's times to this clock, within the time from sending to receiving."""
        behind_s = self.behind_s
        answer.start_s = min(max(answer.start_s + behind_s, sent_s), heard_s)
        answer.stop_s = min(max(answer.stop_s + behind_s, answer.start_s), heard_s)


class RayBackend(FrameBackend):
    """A backend with one Ray actor per device, each with a worker process beside it."""

    is_threaded = True

    def __init__(self, options: WorkerOptions | None = None, settings: Ray | None = None) -> None:
        self._ray = require("ray", extra="ray", why="backend='ray'")
        self._settings = settings or Ray()
        program = ProgramSettings.of_this_process()  # an actor starts them, in a program of Ray's
        self._options = replace(options or WorkerOptions(), program=program)
        self._cluster: Cluster | None = None
        self._channels: dict[str, ActorChannel] = {}  # by device
        self._workers: dict[int, _RemoteWorker] = {}  # by worker
        self._arrived: queue.SimpleQueue[tuple[ActorChannel, int, Any] | None] = queue.SimpleQueue()
        self._messages: list[Message] = []
        self._positions: dict[int, Any] = {}
        self._watch: NodeWatch | None = None

    @property
    def host(self) -> str:
        return self._ray.util.get_node_ip_address()

    def devices(self, spec: Spec) -> DevicePool:
        is_first = self._cluster is None
        try:
            return self._connected().devices(spec)
        except BaseException:
            if is_first:  # nobody else uses the connection
                self.close(0.0)
            raise

    def watch(self, changed: Callable[[], None]) -> None:
        """Call ``changed``, in a thread of its own, whenever a machine has come or gone; see ``Machines``."""
        if self._watch is None:
            self._watch = NodeWatch(self._connected().refresh, changed)

    def lost(self, devices: Iterable[Device]) -> tuple[str, ...]:
        return self._connected().lost(devices)

    def arrivals(self, spec: Spec) -> tuple[Device, ...]:
        return self._connected().arrivals(spec)

    def free_memory(self) -> FreeMemory:
        return self._connected().free_memory()

    def start(self, worker: int, device: Device, pool: DevicePool, environment: Mapping[str, str]) -> None:
        channel = self._channels.get(device.id)
        if channel is None or channel.is_lost:
            try:
                actor = self._connected().actor(device)
            except EvenloadError:
                raise
            except Exception as error:  # whatever Ray refuses, such as a runtime_env
                raise OSError(str(error).strip().splitlines()[0] if str(error) else repr(error)) from error
            channel = self._channels[device.id] = ActorChannel(
                device, actor, self._arrived, time.monotonic() + self._start_s
            )
        self._workers[worker] = remote = _RemoteWorker(channel)
        remote.kill_until_s = time.monotonic() + self._start_s + KILL_S
        channel.write(ActorCommand("start", (worker, device, dict(environment))))

    def send(self, worker: int, task: int, chunk: int, items: Sequence[Any], singly: bool) -> int:
        asked_s = time.monotonic()
        n_bytes = super().send(worker, task, chunk, items, singly)
        self._workers[worker].sent_s[chunk] = asked_s
        return n_bytes

    def drop(self, worker: int, chunk: int) -> None:
        self._tell(worker, ActorCommand("drop", (worker, chunk)))

    def position(self, worker: int) -> tuple[int, float]:
        """Ask all actors at once, as the caller is about to ask for the other workers, too."""
        if worker not in self._positions:
            for other, remote in self._workers.items():
                if remote.sent_s and not remote.channel.is_lost:
                    self._positions[other] = remote.channel.actor.position.remote(other)
        channel = self._workers[worker].channel
        try:
            position = self._ray.get(self._positions[worker], timeout=POSITION_S)
            channel.n_unanswered = 0
            return position
        except self._ray.exceptions.GetTimeoutError:
            channel.n_unanswered += 1
            if channel.n_unanswered >= MOST_UNANSWERED:
                self._workers[worker].kill_until_s = 0.0
        except (KeyError, self._ray.exceptions.RayError):  # it has no chunk, or has ended
            pass
        return NOT_BEGUN, 0.0

    def kill(self, worker: int) -> None:
        remote = self._workers.get(worker)
        if remote is None:
            return
        remote.channel.write(ActorCommand("kill", (worker,)))
        until = time.monotonic() + KILL_S
        remote.kill_until_s = until if remote.kill_until_s is None else min(remote.kill_until_s, until)

    def show_stack(self, worker: int) -> None:
        self._tell(worker, ActorCommand("show_stack", (worker,)))

    def poll(self, timeout_s: float | None) -> list[Message]:
        self._positions.clear()
        for channel in self._channels.values():
            channel.flush()
        if not self._messages:
            self._take(self._patience(timeout_s))
        self._end_overdue(time.monotonic())
        messages, self._messages = self._messages, []
        return messages

    def wake(self) -> None:
        self._arrived.put(None)

    def close(self, grace_s: float) -> list[Message]:
        messages: list[Message] = []
        if self._watch is not None:
            self._watch.close()
        self._lose_left()
        for channel in self._channels.values():
            channel.write(ActorCommand("close", (grace_s,)))
        until = time.monotonic() + max(grace_s, FREE_S) + KILL_S
        while self._workers and time.monotonic() < until:
            messages += self.poll(0.1)
        for channel in self._channels.values():
            channel.end()
        until = time.monotonic() + LEAVE_S
        while not all(channel.is_lost for channel in self._channels.values()) and time.monotonic() < until:
            messages += self.poll(0.05)
        self._channels.clear()
        if self._cluster is not None:
            self._cluster.leave()
            self._cluster = None
        return messages

    # --- inside -----------------------------------------------------------------------------------

    @property
    def _start_s(self) -> float:
        return START_S + (PREPARE_S if self._settings.runtime_env else 0.0)

    def _connected(self) -> Cluster:
        if self._cluster is None:
            options = replace(self._options, start=self._options.start or "spawn")
            self._cluster = Cluster(self._settings, options)
        return self._cluster

    def forward(self, worker: int, frame: Frame) -> None:
        self._tell(worker, ActorCommand("send", (RayFrame.of(worker, None, frame),)))

    def _tell(self, worker: int, command: ActorCommand) -> None:
        """Write to the worker's actor, unless it has ended, which a message says that is not taken in yet."""
        if worker in self._workers:
            self._workers[worker].channel.write(command)

    def _take(self, timeout_s: float | None) -> None:
        """Wait for replies, then read all that have arrived."""
        try:
            arrived = self._arrived.get(timeout=timeout_s)
            while True:
                if arrived is not None:
                    channel, number, answer = arrived
                    if isinstance(answer, BaseException):
                        self._lose(channel, self._cause(channel, answer))
                    for reply in channel.take(number, answer) if not channel.is_lost else ():
                        self._read(reply)
                arrived = self._arrived.get_nowait()
        except queue.Empty:
            pass

    def _read(self, reply: ExchangeReply) -> None:
        for one in reply.messages:
            remote = self._workers.get(one.worker)
            if remote is None:
                continue  # the worker was given up
            if isinstance(one, Gone):
                del self._workers[one.worker]
            self._messages.append(one if not isinstance(one, RayFrame) else self._message(remote, one))

    def _message(self, remote: "_RemoteWorker", sent: RayFrame) -> Message:
        frame = sent.open(writable=True)
        try:
            message = message_of(sent.worker, sent.pid, frame)
        except ProtocolViolation as violation:
            return Untrue(sent.worker, str(violation))
        if frame.kind == protocol.UP:
            remote.kill_until_s = None
        if frame.kind in protocol.CHUNK_ENDS:
            sent_s = remote.sent_s.pop(frame.chunk, None)
            if isinstance(message, Answered) and sent_s is not None:
                remote.channel.clock.translate(message.answer, sent_s, time.monotonic())
        return message

    def _patience(self, timeout_s: float | None) -> float | None:
        dues = [one.kill_until_s for one in self._workers.values() if one.kill_until_s is not None]
        waited_for = [channel for channel in self._channels.values() if not channel.is_lost]
        dues += [one.ready_until_s for one in waited_for if one.ready_until_s is not None]
        if not dues:
            return timeout_s
        left_s = max(0.0, min(dues) - time.monotonic())
        return left_s if timeout_s is None else min(timeout_s, left_s)

    def _end_overdue(self, now: float) -> None:
        for channel in self._channels.values():
            if not channel.is_lost and channel.ready_until_s is not None and now >= channel.ready_until_s:
                channel.end()
                needs = self._connected().needs(channel.device)
                self._lose(channel, f"got no actor from Ray in {self._start_s:g} s. It needs {needs}.")
        for remote in tuple(self._workers.values()):
            if not remote.channel.is_lost and remote.kill_until_s is not None and now >= remote.kill_until_s:
                remote.channel.end()
                self._lose(remote.channel, "was lost: its actor does not answer")

    def _lose_left(self) -> None:
        """Give up the workers of machines that have left: nobody there will answer."""
        with contextlib.suppress(RuntimeError):  # the cluster itself is gone
            devices = [channel.device for channel in self._channels.values() if not channel.is_lost]
            for device in self._connected().lost(devices) if devices else ():
                self._lose(self._channels[device], "was lost with its machine")

    def _lose(self, channel: ActorChannel, cause: str) -> None:
        """Report the workers of a lost actor as gone. What they had begun is unknown: maybe all of it."""
        channel.is_lost = True
        for worker, remote in tuple(self._workers.items()):
            if remote.channel is channel:
                del self._workers[worker]
                position = PACKING if remote.sent_s else NOT_BEGUN
                self._messages.append(Gone(worker, None, position, cause=cause, is_cut_off=True))

    def _cause(self, channel: ActorChannel, error: BaseException) -> str:
        """Find the line of Ray's long error text that says what happened."""
        lines = [line.strip() for line in str(error).splitlines()]
        told = [line for line in lines if line.startswith("The actor")]
        cause = f"was lost with its Ray actor: {told[-1] if told else next(filter(None, lines), repr(error))}"
        if channel.ready_until_s is not None:  # it never started
            cause = f"{cause} It needs {self._connected().needs(channel.device)}."
        return cause


class _RemoteWorker:
    """A worker behind an actor: its channel, and when each chunk that it holds was sent.

    kill_until_s   when its actor is killed if it has not started, or ended, by then; None: never
    """

    __slots__ = ("channel", "kill_until_s", "sent_s")

    def __init__(self, channel: ActorChannel):
        self.channel = channel
        self.sent_s: dict[int, float] = {}
        self.kill_until_s: float | None = None
