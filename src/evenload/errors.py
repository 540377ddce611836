"""Every error that evenload raises, in one tree.

EvenloadError
├── ConfigError            a value, file or option is refused (exit code 2)
│   ├── SpecError          a job file has one or more faults, all listed with their paths
│   └── UnknownName        a name is not among the known ones; the nearest is proposed
├── NoUsableDevice         no device can do the work (exit code 3)
├── MissingExtra           an optional package is not installed (exit code 3)
├── FormatError            a file is damaged or not what it should be
├── TaskError              one item failed; ``__cause__`` is the task's own exception
│   ├── TaskTimeout        the item ran longer than it was allowed to
│   ├── WorkerLost         the worker process died while it held the item
│   ├── ArgumentFailed     a call was not made, as the call for one of its arguments failed
│   ├── SlicesFailed       several slices of one array failed: a group of their errors
│   ├── PromptsFailed      prompts of a model failed; ``results`` has what the others gave
│   └── ResultNotSendable  the result or exception could not be pickled
├── GangError              a rank of a gang failed, and the others were ended
├── PeerLost               a rank that others wait for in an exchange is gone; ``__cause__`` says how
├── ResourceExhausted      a task says: too little memory for this many items at once
└── ExecutorClosed         work was handed to an executor that is closed

Each message says what was given and why it is refused; ``hint`` says what to do instead. What
strangers wrote is shown by ``quoted`` and ``printable``: a short piece of it, without control characters.
What they miss is cut: no word, line or list of a message is longer than a person reads.
"""

import errno
import os
import reprlib
from collections.abc import Iterable, Sequence
from typing import Any

from evenload._plain_text import plain, shortened

__all__ = [
    "ArgumentFailed",
    "ConfigError",
    "EvenloadError",
    "ExecutorClosed",
    "FormatError",
    "GangError",
    "MissingExtra",
    "NoUsableDevice",
    "PeerLost",
    "PromptsFailed",
    "ResourceExhausted",
    "ResultNotSendable",
    "SlicesFailed",
    "SpecError",
    "TaskError",
    "TaskTimeout",
    "UnknownName",
    "WorkerLost",
    "folder_hint",
    "not_sendable",
    "printable",
    "quoted",
    "reason_of",
]

MAX_QUOTED = 80
MAX_PRINTABLE = 200
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # a full disk, a quota, a limit on the size of files


def printable(text: str, most: int = MAX_PRINTABLE) -> str:
    """At most ``most`` characters of ``text``; "?" in place of control characters and their kind."""
    shown = text if len(text) <= most else text[: most - 1] + "…"
    return "".join(letter if letter.isprintable() else "?" for letter in shown)


def quoted(value: object, most: int = MAX_QUOTED) -> str:
    """The repr of ``value`` for a message: at most ``most`` characters, all printable. Never raises.

    The work does not grow with a value of the built-in types, however long or nested it is.
    """
    try:
        if isinstance(value, str | bytes | bytearray) and len(value) > most:
            return printable(repr(value[: most - 3])[: most - 1] + "…", most)
        return printable(_SHORT.repr(value), most)
    except Exception:  # the repr of an object is code of whoever made it
        return printable(f"<{type(value).__name__}>", most)


def reason_of(error: BaseException, *, with_path: bool = False) -> str:
    """Why a file or program could not be used, for a message: the system's words, without a number, but not
    the advice of numpy and torch to run whatever a file holds.

    with_path  name the file, too: for a message that does not
    """
    if isinstance(error, UnicodeDecodeError):
        return "it is no text in UTF-8"
    if not isinstance(error, OSError) or not error.strerror:
        said = str(error) or type(error).__name__
        is_advice = any(option in said for option in ("allow_pickle", "weights_only", "pickle.load"))
        return "it holds Python objects, which are not loaded, or is damaged" if is_advice else said
    named = f": {quoted(str(error.filename), MAX_PRINTABLE)}" if with_path and error.filename else ""
    return printable(error.strerror) + named


def not_sendable(what: str, hint: str) -> TypeError:
    """The error of ``pickle`` for an object that is this program's own."""
    return TypeError(f"{what} cannot leave this program ({hint})")


def folder_hint(otherwise: str) -> str:
    """The hint of an error about a folder: if the working folder is gone, that is why nothing is found."""
    try:
        os.getcwd()
    except OSError:
        return "the folder in which this program runs was deleted: change to another, or give absolute paths"
    return otherwise


class _ShortRepr(reprlib.Repr):
    """A repr of containers by their first elements, and of large integers by their size."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = MAX_PRINTABLE

    def repr_int(self, x: int, level: int) -> str:
        n_bits = x.bit_length()
        return f"<int of {n_bits} bits>" if n_bits > 8 * MAX_PRINTABLE else repr(x)


_SHORT = _ShortRepr()


class EvenloadError(Exception):
    """The root of evenload's errors. ``hint``: one imperative sentence; ``exit_code``: of the commands."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None):
        message = shortened(message)
        super().__init__(message)
        self.message = message
        self.hint = None if hint is None else shortened(hint)

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions with keyword-only arguments do not survive pickling by themselves.
        return _rebuild, (type(self), self.args, self.__dict__.copy())

    def __str__(self) -> str:
        return plain(self._text())

    def _text(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


def _rebuild(cls: type[EvenloadError], args: tuple, state: dict) -> EvenloadError:
    error = cls.__new__(cls)
    Exception.__init__(error, *args)
    error.__dict__.update(state)
    return error


class ConfigError(EvenloadError, ValueError):
    """An error for a value, file or option that is refused before any work starts; a ValueError, too."""

    exit_code = 2


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return a sentence that proposes the nearest of ``known``; "" if none is near."""
    import difflib  # a command that goes well does not wait for it

    near = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"did you mean {quoted(near[0])}? " if near else ""


class UnknownName(ConfigError):
    """An error for a ``name`` that is not one of ``known``; the hint proposes the nearest."""

    def __init__(self, what: str, name: str, known: Iterable[str]):
        import difflib  # a command that goes well does not wait for it

        choices = sorted(known)
        text = name[:MAX_PRINTABLE] if isinstance(name, str) else quoted(name)
        lowered = {str(choice).lower(): choice for choice in choices}
        near = difflib.get_close_matches(text.lower(), lowered, n=1, cutoff=0.5)
        hint = f"did you mean {lowered[near[0]]!r}? known: " if near else "use one of: "
        super().__init__(f"unknown {what} {quoted(name)}", hint=hint + ", ".join(choices))
        self.name = name
        self.known = choices


class SpecError(ConfigError):
    """An error for a job file with faults. ``faults`` lists ``(path, message)`` of each."""

    def __init__(self, source: str, faults: Iterable[tuple[str, str]], *, hint: str | None = None):
        self.source = source
        self.faults = list(faults)
        n_faults = len(self.faults)
        lines = "\n".join(f"  {path}: {message}" for path, message in self.faults)
        plural = "fault" if n_faults == 1 else "faults"
        super().__init__(f"{source} has {n_faults} {plural}:\n{lines}", hint=hint)


class NoUsableDevice(EvenloadError):
    """An error for work without a device. ``causes``: by device id, why it cannot be used."""

    exit_code = 3

    def __init__(self, message: str, *, causes: dict[str, str] | None = None, hint: str | None = None):
        self.causes = dict(causes or {})
        detail = "".join(f"\n  {device}: {why}" for device, why in self.causes.items())
        super().__init__(message + detail, hint=hint)


class MissingExtra(EvenloadError, ImportError):
    """An error for an optional package that is not installed; the hint is the install line."""

    exit_code = 3


class FormatError(EvenloadError):
    """An error for a file that is damaged, truncated or of another format than it claims."""


class TaskError(EvenloadError):
    """An error of one item.

    ``index`` is its position in the input (None if unknown), ``device`` where it ran, and
    ``remote_traceback`` the text of the worker's traceback. ``__cause__`` is the task's exception.
    """

    def __init__(
        self,
        message: str,
        *,
        index: int | None = None,
        device: str | None = None,
        remote_traceback: str = "",
        hint: str | None = None,
    ):
        super().__init__(message, hint=hint)
        self.index = index
        self.device = device
        self.remote_traceback = remote_traceback

    def _text(self) -> str:
        text = super()._text()
        return (
            f"{text}\n\n--- on {self.device} ---\n{self.remote_traceback}" if self.remote_traceback else text
        )


class TaskTimeout(TaskError):
    """An error for an item that ran longer than ``timeout_s``; its worker was replaced."""


class WorkerLost(TaskError):
    """An error for an item whose worker process died.

    ``exit_code_of_worker`` is negative for a signal, None if not known.
    """

    exit_code_of_worker: int | None = None


class ResultNotSendable(TaskError):
    """An error for an item or result that cannot be pickled or unpickled."""


class ArgumentFailed(TaskError):
    """An error of a call that was not made, as an earlier call, whose future it was given, has failed.

    ``__cause__`` is the error of the call that failed first.
    """


class SlicesFailed(TaskError, ExceptionGroup):
    """An error for several slices that failed, in the order of the array: a group of their TaskErrors.

    Its ``index``, ``device`` and ``__cause__`` are the first one's; ``except*`` takes it apart.
    """

    message = ""  # a group's own cannot be set

    def __new__(cls, message: str, errors: Sequence[TaskError]) -> "SlicesFailed":
        return ExceptionGroup.__new__(cls, message, errors)  # pyrefly: ignore

    def __init__(self, message: str, errors: Sequence[TaskError]):
        first = errors[0]
        where: dict[str, Any] = {"index": first.index, "device": first.device, "hint": first.hint}
        super().__init__(f"{message}; the first: {first.message}", **where)
        self.__cause__ = first.__cause__

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_group, (self.args[0], list(self.exceptions), self.__dict__.copy())


class PromptsFailed(TaskError):
    """An error for prompts that failed, raised when all others are done.

    ``results`` has a text for each prompt, or the TaskError of one that failed, whose first is the cause.
    """

    def __init__(self, message: str, first: TaskError, results: Sequence[Any]):
        super().__init__(f"{message}; the first: {first.message}", index=first.index, device=first.device,
                         hint='on_error="return" gives errors in their places')  # fmt: skip
        self.__cause__ = first.__cause__ or first
        self.results = list(results)


def _rebuild_group(message: str, errors: Sequence[TaskError], state: dict) -> SlicesFailed:
    group = SlicesFailed(message, errors)
    group.args = (message,)
    group.__dict__.update(state)
    return group


class GangError(EvenloadError):
    """An error of a gang: a rank raised, died or was late, and the others were ended.

    ``rank`` and ``device`` are of the rank at fault, ``remote_traceback`` is its traceback or last output;
    ``__cause__`` is what it raised.
    """

    def __init__(self, message: str, *, rank: int, device: str, remote_traceback: str = ""):
        super().__init__(message)
        self.rank = rank
        self.device = device
        self.remote_traceback = remote_traceback

    def _text(self) -> str:
        said = f"\n\n--- on {self.device} ---\n{self.remote_traceback}" if self.remote_traceback else ""
        return super()._text() + said


class PeerLost(EvenloadError):
    """An error of an exchange between ranks that a rank left, or that its backend failed in."""


class ResourceExhausted(EvenloadError):
    """An error that a task raises if there is too little memory for its batch."""


class ExecutorClosed(EvenloadError):
    """An error for work that is given to an executor after ``close()``."""
