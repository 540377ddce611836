"""The Ray actor of a device: runs the worker process beside it and passes frames on.

The process backend starts the worker, as a child of the actor. So a task that crashes, hangs or holds the
interpreter's lock affects the worker only; the actor reports it and starts the next one. When Ray ends the
actor, or its driver or machine is gone, the worker ends too.

    driver ──exchange(commands)──► WorkerActor ──frames over pipes──► worker
    driver ◄────── messages ────── WorkerActor ◄──────────────────── worker
"""

import contextlib
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Union

from evenload.devices import Device, DevicePool
from evenload.errors import reason_of
from evenload.executor.backends import WorkerOptions
from evenload.executor.backends.process import ProcessBackend
from evenload.executor.task.messages import Gone, Said
from evenload.executor.transport.progress_cell import NOT_BEGUN
from evenload.executor.transport.wire import Frame

if TYPE_CHECKING:
    import numpy as np

Piece = Union[bytes, "np.ndarray"]  # what Ray carries: large pieces as arrays, through its object store
LARGE_BYTES = 64 * 1024


class ActorCommand(NamedTuple):
    """A command for the actor: a method of it (``_start``) or of its backend by name, and the arguments."""

    verb: str
    arguments: tuple


class RayFrame(NamedTuple):
    """A frame on its way through Ray."""

    worker: int
    kind: int
    task: int
    chunk: int
    body: Piece
    buffers: tuple[Piece, ...]
    pid: int | None = None

    @classmethod
    def of(cls, worker: int, pid: int | None, frame: Frame) -> "RayFrame":
        buffers = tuple(map(_piece, frame.buffers or ()))
        return cls(worker, frame.kind, frame.task, frame.chunk, _piece(frame.body), buffers, pid)

    def open(self, *, writable: bool = False) -> Frame:
        """Return the frame. ``writable``: as a copy; Ray's own is read-only and takes room in its store."""
        buffers: list[Any] = [bytearray(_view(p)) if writable else _view(p) for p in self.buffers]
        body = self.body if isinstance(self.body, bytes) else _view(self.body)
        return Frame(self.kind, self.task, self.chunk, body, buffers or None)


class ExchangeReply(NamedTuple):
    """The reply to one ``exchange``. ``number`` is its place in the order.

    ``came_s`` and ``left_s``: when the exchange came and the reply left, by the actor's clock.
    """

    number: int
    messages: list[RayFrame | Said | Gone]
    came_s: float
    left_s: float


class WorkerActor:
    """The actor, which Ray runs on the device's machine.

    ``path`` (of imports) and ``folder`` are the driver's; entries that do not exist here are skipped.
    """

    def __init__(self, path: Sequence[str], folder: str, options: WorkerOptions):
        sys.path[:] = [*path, *(entry for entry in sys.path if entry not in path)]
        with contextlib.suppress(OSError):  # another machine may lack the folder
            os.chdir(folder)
        self._backend = ProcessBackend(options, RayFrame.of)
        self._changed = threading.Condition()
        self._commands: deque[tuple[ActorCommand, Future | None]] = deque()
        self._messages: list[Any] = []
        self._n_begun = self._n_ended = 0
        self._is_closed = False
        threading.Thread(target=self._serve, name="evenload-actor", daemon=True).start()

    def hello(self) -> dict[str, Any]:
        """Return the boot id of the machine, the process id, and the GPUs that Ray has assigned."""
        import ray

        return {"boot": boot_id(), "pid": os.getpid(), "gpus": [str(gpu) for gpu in ray.get_gpu_ids()]}

    def exchange(self, number: int, commands: Sequence[ActorCommand]) -> ExchangeReply:
        """Do ``commands``, wait for messages of the worker and return them.

        Exchanges may arrive in any order; ``number`` is the right one.

        Returns as soon as the next one has come, so that one is waiting at any time: also after the end, when
        it fails as Ray ends the actor.
        """
        came_s = time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: self._n_begun == number)
            self._commands.extend((command, None) for command in commands)
            self._n_begun += 1
            self._changed.notify_all()
            self._wake()
            self._changed.wait_for(
                lambda: self._n_ended == number and (self._messages or self._n_begun > number + 1)
            )
            messages, self._messages = self._messages, []
            self._n_ended += 1
            self._changed.notify_all()
        return ExchangeReply(number, messages, came_s, time.monotonic())

    def position(self, worker: int) -> tuple[int, float]:
        """Return the worker's position; see ``Backend.position``."""
        answer: Future = Future()
        with self._changed:
            if self._is_closed:
                return NOT_BEGUN, 0.0
            self._commands.append((ActorCommand("position", (worker,)), answer))
            self._wake()
        return answer.result()

    def _wake(self) -> None:
        if not self._is_closed:
            self._backend.wake()

    # --- the thread that owns the backend --------------------------------------------------------

    def _serve(self) -> None:
        try:
            self._pump()
        except (
            BaseException
        ):  # a fault of evenload: the driver learns that the actor died, and starts another
            traceback.print_exc()
            os._exit(1)

    def _pump(self) -> None:
        while not self._is_closed:
            messages: list[Any] = []
            while self._commands:
                command, answer = self._commands.popleft()
                try:
                    own = getattr(self, f"_{command.verb}", None)
                    do = partial(own, messages) if own else getattr(self._backend, command.verb)
                    value = do(*command.arguments)
                except KeyError:  # its worker is gone, which is about to be reported
                    value = (NOT_BEGUN, 0.0)
                if answer is not None:
                    answer.set_result(value)
            if not self._is_closed:
                messages += self._backend.poll(0.0 if messages else None)
            if messages:
                with self._changed:
                    self._messages += messages
                    self._changed.notify_all()

    def _start(
        self, messages: list[Any], worker: int, device: Device, environment: Mapping[str, str]
    ) -> None:
        try:
            self._backend.start(worker, device, DevicePool([device]), environment)
        except OSError as error:
            messages.append(
                Gone(
                    worker, None, NOT_BEGUN, cause=f"could not be started: {reason_of(error, with_path=True)}"
                )
            )

    def _send(self, messages: list[Any], sent: RayFrame) -> None:
        self._backend.forward(sent.worker, sent.open())

    def _close(self, messages: list[Any], grace_s: float) -> None:
        messages += self._backend.close(grace_s)
        self._is_closed = True


def boot_id() -> str:
    """Return a name of the machine's current boot: where it is equal, monotonic clocks agree."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    import platform

    return platform.node()


def _view(piece: Piece) -> memoryview:
    return memoryview(piece) if isinstance(piece, bytes) else piece.data


def _piece(buffer: Any) -> Piece:
    view = memoryview(buffer)
    if view.nbytes < LARGE_BYTES:
        return bytes(view)
    import numpy as np  # not before: most actors never need it, and each would wait for it

    return np.frombuffer(view.cast("B"), dtype=np.uint8)
