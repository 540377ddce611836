"""Copy a run's results into a store: opened before the run, waited for after it.

What goes wrong with the store is said, and costs no result.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from evenload._private_files import refuse_unless_own
from evenload.errors import ConfigError, reason_of
from evenload.pipeline.job.remote_files import RemoteFolder, fault_of_folder
from evenload.pipeline.run.interrupts import Interrupts
from evenload.pipeline.store.run_folder import HINT, RunFolder
from evenload.pipeline.store.uploads import Destination, SendLimits, UploadOutcome, Uploads, last_destination

if TYPE_CHECKING:
    from evenload.pipeline.job.spec_settings import UploadSection

WatchUpload = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class OpenedStore:
    """A store that the results of a run go to; ``folder`` is None if they stay where they are."""

    folder: RemoteFolder | None
    stages: tuple[str, ...] | None = None
    limits: SendLimits = field(default_factory=SendLimits)

    @contextlib.contextmanager
    def uploads(self, run_folder: RunFolder) -> Iterator[Uploads | None]:
        """Copy what is offered meanwhile; a context. Raises ConfigError if ``run_folder`` takes no file."""
        if self.folder is None:
            yield None
            return
        to = Destination(self.folder.url, self.stages)
        try:
            uploads = Uploads(self.folder, run_folder.path, to, self.limits)
        except OSError as error:
            raise ConfigError(f"cannot write to {run_folder.path}: {reason_of(error)}", hint=HINT) from error
        with uploads:
            yield uploads


def open_store_of(section: "UploadSection | None") -> OpenedStore:
    """Open the store that a job's results go to.

    Raises ConfigError or MissingExtra if its package cannot take that address.
    """
    if section is None:
        return OpenedStore(None)
    limits = SendLimits(section.timeout_s, section.retries)
    return OpenedStore(RemoteFolder(section.to), section.stages, limits)


def finish_uploads(
    uploads: Uploads | None, interrupts: Interrupts, *, waits: bool, watch: WatchUpload | None
) -> tuple[UploadOutcome | None, list[str]]:
    """Wait until the store has all of a run, or Ctrl-C; returns what it has, and what it lacks in words.

    waits  False: look only; who has ended the run by hand does not wait for a store
    """
    if uploads is None:
        return None, []
    why = ""
    try:
        if waits:
            with interrupts.heeded():
                outcome = uploads.finish(*(() if watch is None else (watch,)))
        else:
            outcome = uploads.outcome()
    except KeyboardInterrupt:
        outcome, why = uploads.outcome(), "the copying was ended"
    except OSError as error:
        outcome, why = uploads.outcome(), reason_of(error, with_path=True)
    if not outcome.n_left:
        return outcome, []
    said = f": {outcome.why or why}" if outcome.why or why else ""
    n_files = f"{outcome.n_left} file{'s' if outcome.n_left > 1 else ''}"
    return outcome, [
        f"{n_files} of the run are not at {outcome.to} yet{said}; copy them: evenload upload {uploads.folder}"
    ]


def upload_run(run_folder: Path, to: str | None = None, watch: WatchUpload | None = None) -> UploadOutcome:
    """Copy what a store lacks of the run in ``run_folder``.

    to  the address of a folder; by default the one that it was copied to last
    Raises ConfigError if there is no run, a process works in it, nobody said where to, or the store cannot be
    opened; MissingExtra without its package.
    """
    with RunFolder.of_run(run_folder) as folder:
        refuse_unless_own(folder.path, folder.path.lstat(), "results that are copied elsewhere")
        last = last_destination(folder.path)
        if to is None and last is None:
            raise ConfigError(
                f"{run_folder} was copied nowhere yet", hint="say where to: --to s3://bucket/folder"
            )
        url = to if to is not None else last.url if last else ""
        if fault := fault_of_folder(url):
            raise ConfigError(f"--to: {fault}" if to is not None else fault)
        stages = last.stages if last is not None and to in (None, last.url) else None
        with OpenedStore(RemoteFolder(url), stages).uploads(folder) as uploads:
            assert uploads is not None
            return uploads.finish(*(() if watch is None else (watch,)))
