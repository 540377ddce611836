"""The run folder: everything that a run leaves behind, in one place.

config.yaml     the job as it ran, every default written out
items.jsonl     its items, if a program gave them as values
events.jsonl    what happened, as it happened
results.jsonl   one row for each item, in input order
summary.json    the headline numbers
outputs/        what the stages made: outputs/<stage>/<item>.png
journal/        the ledger: which results are on disk, so that a run can go on
inputs/         copies of the input files, if the job asks for them
report.html, trace.json
uploads.jsonl   which of these a store has, if they are copied to one

A disk that takes no more, as it is full or not ours now, is reported once, and never as the failure of an
item. Results are in the ledger as they come. What a run writes at its end is tried file by file: one that
does not fit does not cost the others.
"""

import contextlib
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from evenload._arguments import refuse_drive
from evenload._private_files import open_plain, read_plain
from evenload.errors import ConfigError, EvenloadError, reason_of
from evenload.events import json_text
from evenload.pipeline.artifacts import UNWRITABLE, file_name, write_atomically
from evenload.pipeline.store.ledger import FOLDER, Ledger

_FILES = (
    "config.yaml",
    "items.jsonl",
    "events.jsonl",
    "results.jsonl",
    "openai_batch.jsonl",
    "summary.json",
    "report.html",
    "trace.json",
    "plan.json",
    "job.json",
    "uploads.jsonl",
)
_MOST_FACTS_BYTES = 1 << 20
HINT = "make room there, or get leave to write, and run again: what is done is not done again"
_FULL = (*(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)), UNWRITABLE)
_FOLDERS = ("outputs", "inputs", FOLDER, "control")


class RunFolder:
    """The folder of a run that no other process works in: whoever has one need not check it again.

    ``opened`` and ``of_run`` make one.

    path        absolute
    ledger      its results, under the folder's lock
    is_resumed  it held results already
    """

    def __init__(self, path: Path, ledger: Ledger, *, is_resumed: bool):
        self.path, self.ledger, self.is_resumed = path, ledger, is_resumed

    @classmethod
    @contextlib.contextmanager
    def opened(cls, path: Path, *, fresh: bool = False) -> Iterator["RunFolder"]:
        """Make the folder, or open it to go on with the run in it; a context.

        With ``fresh`` the files of an earlier run are removed; what no run writes is left alone. A folder
        of other things is never touched: ConfigError, as for one that another process works in or that cannot
        be written, and as of ``Ledger.open``.
        """
        refuse_drive(path)
        path = path.resolve()
        is_resumed = _made(path, fresh=fresh)
        try:
            ledger = Ledger.open(path, is_fresh=fresh)
        except EvenloadError:
            if not fresh or is_in_use(path):
                raise
            _remove(path, [FOLDER])  # whatever lies there: it is not to be gone on with
            ledger = Ledger.open(path)
        with contextlib.closing(ledger):
            if fresh:  # under the lock, so that no other process has begun here
                if _is_locked(path / "events.jsonl"):
                    raise ConfigError(f"a run is under way in {path}", hint="name another folder with -o")
                _remove(path, _written_by_runs(path) - {FOLDER})
            folder = cls(path, ledger, is_resumed=is_resumed)
            folder.sweep()
            yield folder

    @classmethod
    @contextlib.contextmanager
    def of_run(cls, path: Path) -> Iterator["RunFolder"]:
        """Open the folder of an earlier run, and change nothing in it; a context.

        Raises ConfigError if there is no run in it, and as ``Ledger.open``.
        """
        if not (path / FOLDER).is_dir() or is_of_other_kind(path):
            raise no_job_in(path)
        with contextlib.closing(Ledger.open(path)) as ledger:
            yield cls(path, ledger, is_resumed=True)

    def begin(self, job_folder: Path, made_of: str) -> None:
        """Note whose job this is. The events of another one, which are none of this one's, are taken away.

        made_of  digest of the job's stages and items
        """
        try:
            was = json.loads(read_plain(self.file("job.json"), _MOST_FACTS_BYTES))["made_of"]
        except (OSError, ValueError, KeyError, TypeError):
            was = None
        if was != made_of:
            self.file("events.jsonl").unlink(missing_ok=True)
        self.write_text(
            "job.json", json_text({"schema": 1, "folder": str(job_folder), "made_of": made_of}) + "\n"
        )

    def sweep(self) -> None:
        """Remove files that were half written when a worker was killed."""
        try:
            for partial in (self.path / "outputs").rglob("*.tmp"):
                partial.unlink(missing_ok=True)
            for partial in self.path.iterdir():
                if _is_partial(partial.name):
                    partial.unlink(missing_ok=True)
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def file(self, name: str) -> Path:
        """Return the path of one of a run's files."""
        assert name in _FILES
        return self.path / name

    def keep_input(self, item: str, source: Path) -> str:
        """Copy an input file into the folder; returns its path relative to the folder."""
        relative = f"inputs/{file_name(item, source.suffix or '.file')}"
        target = self.path / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        return relative

    def write_text(self, name: str, text: str) -> None:
        write_atomically(self.file(name), text.encode("utf-8", "backslashreplace"))

    def write_results(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write one JSON object a line, in the order given; ``json_text`` says how odd values are written."""
        self.write_text("results.jsonl", "".join(f"{json_text(row)}\n" for row in rows))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        self.write_text("summary.json", json_text(summary, indent=2) + "\n")


def _made(path: Path, *, fresh: bool) -> bool:
    """Make a run folder, or check one that is there; returns whether it holds results of a run."""
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is a file, not a folder", hint="give another run folder with -o")
    present = _written_by_runs(path) if path.is_dir() else set()
    if present and not fresh and not (path / FOLDER).is_dir():
        raise ConfigError(
            f"{path} holds a run already, and no journal to go on from",
            hint="give another folder with -o, or --fresh",
        )
    try:
        # Whatever the umask, nobody else may write: the job in it is code to who goes on with the run.
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from error
    return bool(present) and not fresh


def _remove(path: Path, names: Iterable[str]) -> None:
    try:
        for one in (path / name for name in names):
            is_folder = one.is_dir() and not one.is_symlink()
            shutil.rmtree(one) if is_folder else one.unlink(missing_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from error


def _written_by_runs(path: Path) -> set[str]:
    """Return the names in a folder that runs write. Raises ConfigError for a folder of other things.

    In a run's folder other files may lie: what people and their editors, certificates and traces put there.
    """
    present = set(os.listdir(path))
    ours = {name for name in present if name in (*_FILES, *_FOLDERS) or _is_partial(name)}
    foreign = sorted(name for name in present - ours if not name.startswith("."))
    is_run = (path / "job.json").is_file() and (path / FOLDER / "journal.json").is_file()
    if foreign and not is_run:
        more = ", ..." if len(foreign) > 3 else ""
        raise ConfigError(
            f"{path} holds what is not of a run: {', '.join(foreign[:3])}{more}",
            hint="give another run folder with -o",
        )
    return ours


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"cannot write to {path}: {reason_of(error)}", hint="give another run folder with -o")


def _is_partial(name: str) -> bool:
    """Return whether ``name`` is that of a file whose writer was killed, or of what workers shared."""
    return name.endswith(".tmp") and name.lstrip(".").startswith((*_FILES, "pace-"))


def is_in_use(path: Path) -> bool:
    """Return whether a process works in the run folder ``path``: of a job, a map or a training."""
    return _is_locked(path / FOLDER / "lock") or _is_locked(path / "events.jsonl")


def is_of_other_kind(path: Path) -> bool:
    """Return whether the folder ``path`` has a run that is of no job file, but of a map or a training."""
    return (path / "events.jsonl").is_file() and not (path / "job.json").is_file()


def no_job_in(path: Path) -> ConfigError:
    """Return the error for a folder that should have a job's run in it."""
    if is_of_other_kind(path):
        return ConfigError(
            f"the run in {path} is of no job file",
            hint="a map's rows are in its -o FILE; copy that, or go on with `evenload map ... --resume`",
        )
    return ConfigError(f"{path} is not the folder of a run", hint="give the one that `evenload run` printed")


def _is_locked(path: Path) -> bool:
    try:
        with open(open_plain(path), "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def says_full(text: str) -> bool:
    """Return whether an error's text says that the disk is full, over its quota, read-only or out of reach.

    The error may be of a stage, which may not be allowed to read an input; so the last is only what
    ``write_output`` says of a file in the run folder.
    """
    return any(words in text for words in _FULL)


class FinalWrites:
    """The files that a run writes at its end. ``failed``: which could not be written, and why."""

    def __init__(self) -> None:
        self.failed: list[tuple[str, str]] = []

    @contextlib.contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Enclose the writing of ``name``: note an error of the file system, raise any other."""
        try:
            yield
        except OSError as error:
            self.failed.append((name, reason_of(error)))
        except EvenloadError as error:
            if not isinstance(error.__cause__, OSError):
                raise
            self.failed.append((name, error.__cause__.strerror or str(error.__cause__)))

    def raise_with(self, error: Exception | None) -> None:
        """Raise ``error``, which ended the run, with the files that could not be written; or those alone."""
        reasons = ", ".join(dict.fromkeys(why for _, why in self.failed))
        text = f"could not be written: {', '.join(name for name, _ in self.failed)} ({reasons})"
        if error is None and self.failed:
            raise EvenloadError(text, hint=HINT)
        if error is not None:
            if self.failed:
                error.add_note(text)
                if isinstance(error, EvenloadError):
                    error.message += f"\n  {text}"
            raise error
