"""Another program tells a running job to drain or add devices, through files in the job's folder.

    job:    with Control(folder, executor): ...
    other:  ask(folder, "drain", ["cuda:3"])

A request is a file ``control/<name>.ask``, the answer ``control/<name>.answer``; both appear whole, by
renaming. Only the job's own user can write there, and requests of others are not read. ``control/owner``
says which process listens; if that is gone, the folder is a past run's and nothing is asked of it.
"""

import contextlib
import json
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from evenload._private_files import DRAFT, own_folder, read_own, refuse_unless_own, write_own
from evenload.errors import ConfigError, EvenloadError, printable, quoted

LOOK_S = 0.25
WAIT_S = 20.0
LOOKS_PER_CHECK = 10  # for an answer, before it is checked again that somebody listens
MOST_BYTES = 64 * 1024
MOST_SHOWN = 1_000
WHAT = "what is asked of a running job"


class Controllable(Protocol):
    """An executor, or a run, whose devices may be changed; a run has a method ``stop``, too."""

    @property
    def devices(self) -> Any: ...

    def drain(self, *devices: str, at_once: bool = False) -> None: ...

    def add(self, devices: Any) -> tuple[str, ...]: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    @property
    def is_paused(self) -> bool: ...


class Control:
    """A listener in ``folder`` for requests of other programs, while its ``with`` block runs.

    Raises ConfigError if the folder cannot be written, or if others may write there.
    """

    def __init__(self, folder: str | os.PathLike, target: Controllable):
        self._folder = Path(folder) / "control"
        self._target = target
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="evenload-control", daemon=True)

    def __enter__(self) -> "Control":
        try:
            own_folder(self._folder, WHAT)
            self._clear("*.ask", "*.answer", f"*{DRAFT}")
            _write(self._folder / "owner", _myself())
        except OSError as error:
            raise ConfigError(
                f"{self._folder} cannot be written: {error.strerror}", hint="choose another folder"
            ) from error
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        with contextlib.suppress(OSError):  # a drive that has failed must not hide how the run ended
            self._clear("*.ask")  # whoever asked takes the answer: the request may have ended the run

    def _clear(self, *kinds: str) -> None:
        for entry in [*(one for kind in kinds for one in self._folder.glob(kind)), self._folder / "owner"]:
            with contextlib.suppress(OSError):  # gone with its folder, or no file at all
                entry.unlink(missing_ok=True)

    def _serve(self) -> None:
        while not self._is_over.wait(LOOK_S):
            try:
                asked = sorted(self._folder.glob("*.ask"))
            except OSError:  # the folder was moved or deleted: nobody can ask any more
                continue
            for file in asked:
                self._answer(file)

    def _answer(self, file: Path) -> None:
        try:
            answer = self._obey(_read_own(file))
        except EvenloadError as error:
            answer = {"error": error.message, "hint": error.hint}
        except Exception as error:
            why = printable(f"{type(error).__name__}: {error}")
            answer = {"error": f"it cannot be understood: {why}", "hint": None}
        try:
            file.unlink(missing_ok=True)
            _write(file.with_suffix(".answer"), answer)
        except OSError:  # a full disk: whoever asks is told after a while that no answer came
            pass

    def _obey(self, asked: dict[str, Any]) -> dict[str, Any]:
        action, devices = asked["action"], [str(device) for device in asked["devices"]]
        if action == "drain":
            self._target.drain(*devices, at_once=bool(asked.get("at_once")))
        elif action == "add":
            devices = list(self._target.add(",".join(devices)))
        elif action == "pause":
            self._target.pause()
        elif action == "resume":
            self._target.resume()
        elif action == "stop" and (stop := getattr(self._target, "stop", None)) is not None:
            stop(*(str(item) for item in asked.get("items", ())))
        elif action == "stop":
            if asked.get("items"):
                raise ConfigError("its items cannot be stopped one by one", hint="leave out --item to end it")
            os.kill(os.getpid(), signal.SIGINT)  # a map's program ends as by Ctrl-C
        elif action != "list":
            raise ConfigError(
                f"unknown action {quoted(action)}", hint="use drain, add, pause, resume, stop or list"
            )
        is_paused = action == "pause" or (action != "resume" and self._target.is_paused)
        return {"done": devices, "devices": list(self._target.devices.ids), "is_paused": is_paused}


def ask(
    folder: str | os.PathLike,
    action: str,
    devices: Sequence[str] = (),
    *,
    at_once: bool = False,
    wait_s: float = WAIT_S,
    sleep: Callable[[float], None] = time.sleep,
) -> list[str]:
    """Have the job in ``folder`` "drain" or "add" ``devices``, or "list" them; returns those it then has.

    Raises ConfigError if no job of this user runs there, if it refuses, or if it does not answer in time.
    """
    return exchange(folder, action, devices, at_once=at_once, wait_s=wait_s, sleep=sleep)["devices"]


def exchange(
    folder: str | os.PathLike,
    action: str,
    devices: Sequence[str] = (),
    *,
    at_once: bool = False,
    items: Sequence[str] = (),
    wait_s: float = WAIT_S,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Ask as ``ask`` does, also for "pause", "resume" and "stop"; returns ``devices`` and ``is_paused``.

    items  ids of those that are to be given up, for "stop"; none for the whole run
    """
    control = Path(folder) / "control"
    _check_owner(Path(folder), control)
    name = f"{os.getpid()}-{time.monotonic_ns()}"
    request, reply = control / f"{name}.ask", control / f"{name}.answer"
    asked = {"action": action, "devices": list(devices), "items": list(items), "at_once": at_once}
    try:
        _write(request, asked)
        _await(reply, Path(folder), time.monotonic() + wait_s, sleep)
        answer = _read_own(reply)
    except OSError as error:
        raise ConfigError(
            f"{control} cannot be used: {error.strerror}", hint="ask as the user who runs the job"
        ) from error
    except ConfigError:
        raise
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"what answers in {control} is no JSON of ours: {printable(str(error))}",
            hint="give the folder of a run that is under way",
        ) from error
    finally:
        for file in (request, reply):
            if os.access(control, os.W_OK):
                file.unlink(missing_ok=True)
    return _understood(answer, folder)


def _await(reply: Path, folder: Path, until_s: float, sleep: Callable[[float], None]) -> None:
    """Wait for the answer. Raises ConfigError if nobody listens any more, or nobody answers in time."""
    n_looks = 0
    while not reply.exists():
        n_looks += 1
        is_late = time.monotonic() > until_s
        if is_late or n_looks % LOOKS_PER_CHECK == 0:
            try:
                _check_owner(folder, reply.parent)
            except ConfigError:
                if reply.exists():  # the last thing it did
                    return
                raise
        if is_late:
            raise ConfigError(f"the job in {folder} does not answer", hint="look whether it hangs")
        sleep(0.05)


def _understood(answer: dict[str, Any], folder: str | os.PathLike) -> dict[str, Any]:
    """Raises ConfigError for a refusal, and for an answer that no job of ours gives."""
    if "error" in answer:
        hint = answer.get("hint")
        raise ConfigError(
            f"the job in {folder} refuses: {printable(str(answer['error']), MOST_SHOWN)}",
            hint=None if hint is None else printable(str(hint), MOST_SHOWN),
        )
    devices = answer.get("devices")
    if not isinstance(devices, list) or not all(isinstance(one, str) for one in devices):
        raise ConfigError(
            f"the job in {folder} answers {quoted(answer)}", hint="give the folder of a run of this version"
        )
    return answer


def _check_owner(folder: Path, control: Path) -> None:
    """Raises ConfigError unless a process of this user listens there."""
    try:
        refuse_unless_own(control, control.lstat(), WHAT)
        owner = _read_own(control / "owner")
        host, pid, started_s = str(owner["host"]), int(owner["pid"]), float(owner["started"])
    except ConfigError:
        raise
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise ConfigError(
            f"no job runs in {folder}", hint="give the folder of a run that is under way"
        ) from None
    if host != platform.node():
        return  # on another machine: only an answer tells whether it lives
    import psutil

    try:
        is_alive = abs(psutil.Process(pid).create_time() - started_s) < 1.0
    except (psutil.Error, ValueError, OverflowError):
        is_alive = False
    if not is_alive:
        raise ConfigError(
            f"the job in {folder} has ended: there is no process {quoted(pid)} any more",
            hint="give the folder of a run that is under way",
        )


def _myself() -> dict[str, Any]:
    import psutil

    return {"pid": os.getpid(), "started": psutil.Process().create_time(), "host": platform.node()}


def _write(path: Path, content: dict[str, Any]) -> None:
    write_own(path, json.dumps(content).encode())


def _read_own(path: Path) -> dict[str, Any]:
    """What is in a file of this user's. Raises OSError, ValueError, or ConfigError if it is another's."""
    content = json.loads(read_own(path, WHAT, MOST_BYTES))
    if not isinstance(content, dict):
        raise ValueError("it is no object")
    return content
