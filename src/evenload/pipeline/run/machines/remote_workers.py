"""Workers that may be on other machines: what those have of the run, and the files that go to and fro.

answer ──► times by this machine's clock ──► site: what its machine has ──► (order for what it lacks)
                                         ──► piece: into the run folder ──► done, once it is on disk
"""

import mmap
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from evenload._private_files import plain_file
from evenload.errors import ConfigError
from evenload.executor.decide.record import Record
from evenload.executor.supervisor.worker import Worker
from evenload.pipeline.dispatch.strand import StageTask
from evenload.pipeline.dispatch.worker_protocol import GIVE, LOOK, Order, OrderOutcome, TaskInputs
from evenload.pipeline.model.model_size import find_model
from evenload.pipeline.run.machines.fetched_files import FetchedFiles, Place
from evenload.pipeline.site import GivenFile, SiteCheck, SiteReport, mark_of, values_in
from evenload.pipeline.stage import StageSetup


@dataclass(slots=True)
class _Visit:
    """What is known of a worker's machine. ``gives_inputs``: files of the items' own are sent there."""

    report: SiteReport = field(default_factory=SiteReport)
    gives_inputs: bool = False


class RemoteWorkers:
    """The machines of a run's workers, each of which looks at its own before it gets work.

    By a token in the run folder, until ``close``, a worker knows that folder again.

    place_of    where a task's output belongs in the run folder; None if that is no file of its stage
    wake        called from a thread when there is something for ``done``
    file_limit  bytes of the longest file that is fetched
    """

    def __init__(
        self,
        stages: Sequence[StageSetup],
        run_folder: Path,
        record: Record,
        place_of: Place,
        wake: Callable[[], None],
        file_limit: int,
    ):
        self._stages, self._run_folder, self._record = tuple(stages), run_folder, record
        self._fetched = FetchedFiles(run_folder, place_of, wake, file_limit)
        self._visits: dict[int, _Visit] = {}
        self._told: set[tuple[str, str]] = set()
        self._check: SiteCheck | None = None

    def close(self) -> None:
        self._fetched.close()
        if self._check is not None:
            (self._run_folder / self._check.token_file).unlink(missing_ok=True)

    def take(
        self,
        worker: Worker,
        outcome: OrderOutcome,
        answered_s: float,
        has: Callable[[StageTask | None], bool],
    ) -> OrderOutcome | None:
        """Return the outcome as one of a worker on this machine; None for a part of one that is to come.

        answered_s  when the worker answered, by this machine's clock
        has         whether a task is one that it runs or saves
        """
        ahead_s = answered_s - outcome.told_s
        outcome.start_s, outcome.stop_s = outcome.start_s + ahead_s, outcome.stop_s + ahead_s
        if outcome.piece is not None:
            if has(outcome.piece.task):
                self._fetched.take(worker.number, outcome.piece)
            return None
        is_far = outcome.files and not self._visits[worker.number].report.has_run_folder
        if outcome.kind == "done" and is_far and has(outcome.task):
            self._fetched.finish(worker.number, outcome)
            return None
        return outcome

    def done(self) -> list[tuple[int, OrderOutcome]]:
        """Return what is over as its files are on disk here now, with the numbers of the workers."""
        return self._fetched.done()

    def forget(self, worker: Worker) -> None:
        """``worker`` is gone."""
        self._visits.pop(worker.number, None)
        self._fetched.forget(worker.number)

    def greeting(self, worker: Worker) -> Order:
        """Return the first order of a worker."""
        self._visits[worker.number] = _Visit()
        return Order(LOOK, check=self._opened())

    def meet(self, worker: Worker, report: SiteReport) -> Order | None:
        """Take in a worker's answer. Returns another order, or None if it can begin.

        Raises ConfigError if it would need more files than are sent, OSError if one of them is gone.
        """
        self._visits[worker.number].report = report
        if not report.has_run_folder:
            self._tell(worker, f"does not have {self._run_folder}: what is made there is fetched")
        if report.has_job_files:
            return None
        folder = self._stages[0].folder
        self._tell(worker, f"does not have what stages use of {folder}: it is sent there")
        return Order(GIVE, files=tuple(map(with_content, self._opened().job_files)))

    def lacks(self, worker: Worker) -> dict[int, str]:
        """Return the stages that cannot run there as models or folders are missing, and which."""
        report = self._visits[worker.number].report
        where = worker.device.node or "this machine"
        return {at: f"{where} has no {', '.join(paths)}" for at, paths in report.lacks.items()}

    def inputs_for(self, worker: Worker, inputs: TaskInputs) -> TaskInputs:
        """Add the files of a task's values: with their contents if they are not there."""
        visit = self._visits[worker.number]
        files = []
        for place, value in values_in(inputs.values):
            given = self._described(value)
            if given is None:
                continue
            is_made = str(value).startswith(f"{self._run_folder}{os.sep}")
            if visit.gives_inputs or (is_made and not visit.report.has_run_folder):
                given = with_content(given)
            files.append((place, given))
        return inputs._replace(files=tuple(files))

    def must_give(self, worker: Worker) -> bool:
        """Files were not found there: they are sent from now on. Returns False if they were before."""
        visit = self._visits[worker.number]
        was, visit.gives_inputs = visit.gives_inputs, True
        if not was:
            self._tell(worker, "does not have the items' files: they are sent there")
        return not was

    def _opened(self) -> SiteCheck:
        if self._check is None:
            token, name = secrets.token_hex(16), f"job.json.{secrets.token_hex(4)}.tmp"
            (self._run_folder / name).write_text(token)
            models, paths = models_of(self._stages), paths_of(self._stages)
            self._check = SiteCheck(self._run_folder, name, token, files_of_job(self._stages), models, paths)
        return self._check

    def _described(self, value: object) -> GivenFile | None:
        """Describe the file at ``value``; None if it is none, or one that is too large to be sent."""
        if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
            return None
        try:
            given = describe_file(value) if os.path.isfile(value) else None
        except OSError:  # the stage will say so
            return None
        if given is not None and given.n_bytes > MOST_BYTES:
            raise ConfigError(
                f"{value} has more than {MOST_BYTES >> 30} GiB", hint="put it on a shared folder"
            )
        return given

    def _tell(self, worker: Worker, text: str) -> None:
        where = worker.device.node or "this machine"
        if (where, text) not in self._told:
            self._told.add((where, text))
            self._record.note("info", f"{where} {text}")


MOST_BYTES = 1 << 30  # of one file, and of the job's files together
MOST_FILES = 10_000


def files_of_job(stages: Sequence[StageSetup]) -> tuple[GivenFile, ...]:
    """Describe the code of the stages, and what their parameters name in the job's folder.

    Models are left out: each machine has its own. Raises ConfigError if it is too much to be sent.
    """
    found: dict[str, GivenFile] = {}
    for stage in stages:
        code = [Path(file) for file, _ in stage.sources]
        code += [] if stage.target.file is None else [stage.target.file]
        for path in (*code, *_named_in_folder(stage)):
            if str(path) not in found:
                found[str(path)] = describe_file(path)
    n_bytes = sum(given.n_bytes for given in found.values())
    if n_bytes > MOST_BYTES or len(found) > MOST_FILES:
        raise ConfigError(
            f"the stages name {len(found)} files of {n_bytes / 2**30:.1f} GiB in the job's folder: too much "
            "to be sent to other machines",
            hint="put the job's folder where all machines see it, or give those files by absolute paths",
        )
    return tuple(found.values())


def models_of(stages: Sequence[StageSetup]) -> dict[int, str]:
    """Return the folder of each stage's model, where this machine has one."""
    found = {
        at: find_model(stage.model.path, stage.folder)
        for at, stage in enumerate(stages)
        if stage.model is not None
    }
    return {at: str(path) for at, path in found.items() if path is not None}


def paths_of(stages: Sequence[StageSetup]) -> dict[int, tuple[str, ...]]:
    """Return for each stage the absolute paths that it names and this machine has."""
    named = {
        at: [text for text in (*_texts(stage.params), stage.python or "") if _is_absolute(text)]
        for at, stage in enumerate(stages)
    }
    return {at: tuple(paths) for at, paths in named.items() if paths}


def describe_file(path: str | Path) -> GivenFile:
    """Describe a file, without its content. Raises OSError."""
    return GivenFile(str(path), os.path.getsize(path), mark_of(path))


def with_content(given: GivenFile) -> GivenFile:
    """Add the content, which is read from the disk while it is sent. Raises OSError."""
    with plain_file(Path(given.path)) as file:
        if not given.n_bytes:
            return given._replace(content=np.empty(0, np.uint8))
        mapped = mmap.mmap(file.fileno(), given.n_bytes, access=mmap.ACCESS_READ)
    return given._replace(content=np.frombuffer(mapped, np.uint8))


def _named_in_folder(stage: StageSetup) -> Iterator[Path]:
    for text in _texts({**stage.params, "call": dict(stage.call)}):
        path = stage.folder / text
        if not text or os.path.isabs(text) or len(text) > 1000 or ".." in Path(text).parts:
            continue
        if path.is_file():
            yield path
        elif path.is_dir() and Path(text) != Path():
            yield from (one for one in sorted(path.rglob("*"))[:MOST_FILES] if one.is_file())


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts in a value of a job file."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)


def _is_absolute(text: str) -> bool:
    return text.startswith("/") and "\0" not in text and os.path.exists(text)
