"""A worker's machine: which of the run's folders it has, and copies of files that it was given instead."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evenload.pipeline.dispatch.item_flow import StageTask
from evenload.pipeline.dispatch.worker_protocol import TaskInputs
from evenload.pipeline.model.model_size import find_model
from evenload.pipeline.site import GivenFile, SiteCheck, SiteReport, is_same_file
from evenload.pipeline.stage import StageSetup


class Site:
    """The machine of a worker as a run's stages find it.

    has_run_folder  outputs are written where they belong; else they are sent to the run
    """

    def __init__(self, stages: Sequence[StageSetup], check: SiteCheck):
        self._given, self._check = tuple(stages), check
        self._scratch: ScratchFolder | None = None
        self._places: dict[StageTask, Path] = {}
        self._n_places = 0
        self._is_mirrored = False
        self.has_run_folder = _is_shared(check)
        self._has_job_files = all(map(is_same_file, check.job_files))

    def report(self) -> SiteReport:
        """Say what is there."""
        lacks = {at: tuple(self._lacks(at)) for at in range(len(self._given))}
        return SiteReport(
            self.has_run_folder,
            self._has_job_files or self._is_mirrored,
            {stage: paths for stage, paths in lacks.items() if paths},
        )

    def take(self, files: Sequence[GivenFile]) -> None:
        """Keep copies of the job's files, each below the scratch folder by its whole path."""
        for given in files:
            _write(self._copy_of(given.path), given.content)
        self._is_mirrored = self._is_mirrored or bool(files)

    def stages(self) -> tuple[StageSetup, ...]:
        """Return the stages with the folders that they have here."""
        return tuple(self._placed(at, setup) for at, setup in enumerate(self._given))

    def with_files(self, inputs: TaskInputs) -> TaskInputs | None:
        """Return a task's inputs with the paths that its files have here; None if one is not there."""
        values: dict[str, Any] = dict(inputs.values)
        for number, (where, given) in enumerate(inputs.files):
            if given.content is not None:
                # A folder for each file: a stage may look at its name.
                place = self._place_of(inputs.task) / str(number) / Path(given.path).name
                _write(place, given.content)
                _put(values, where, str(place))
            elif not is_same_file(given):
                return None
        return inputs._replace(values=values, files=())

    def forget(self, task: StageTask) -> None:
        """Remove the files that were given for a task."""
        place = self._places.pop(task, None)
        if place is not None:
            shutil.rmtree(place, ignore_errors=True)

    def close(self) -> None:
        if self._scratch is not None:
            self._scratch.close()

    @property
    def _folder(self) -> Path:
        if self._scratch is None:
            self._scratch = ScratchFolder()
        return self._scratch.path

    def _place_of(self, task: StageTask) -> Path:
        if task not in self._places:
            self._n_places += 1
            self._places[task] = self._folder / "inputs" / str(self._n_places)
        return self._places[task]

    def _copy_of(self, path: str | Path) -> Path:
        return self._folder / "job" / str(path).lstrip("/")

    def _lacks(self, at: int) -> list[str]:
        setup, known = self._given[at], self._check.models.get(at)
        missing = [path for path in self._check.paths.get(at, ()) if not os.path.exists(path)]
        if setup.model is not None and known is not None and self._model(at) is None:
            missing.append(known if Path(setup.model.path).is_absolute() else f"{setup.model.path} ({known})")
        return missing

    def _model(self, at: int) -> str | None:
        """Return the model as its stage finds it here; None if it is not there."""
        model, known = self._given[at].model, self._check.models.get(at)
        assert model is not None
        if known is not None and Path(known).is_dir():
            return known
        return model.path if find_model(model.path, self._given[at].folder) is not None else None

    def _placed(self, at: int, setup: StageSetup) -> StageSetup:
        run_folder = setup.run_folder if self.has_run_folder else self._folder / "run"
        setup = replace(setup, run_folder=run_folder)
        if not self._is_mirrored:
            return setup
        target, model = setup.target, setup.model
        if target.file is not None:
            path = tuple(map(self._copy_of, target.path))
            target = replace(target, file=self._copy_of(target.file), path=path)
        if model is not None:
            model = replace(model, path=self._model(at) or model.path)
        sources = tuple((str(self._copy_of(file)), digest) for file, digest in setup.sources)
        return replace(setup, folder=self._copy_of(setup.folder), target=target, model=model, sources=sources)


def _put(values: dict[str, Any], where: Sequence[str | int], value: str) -> None:
    """Set the value at a place of ``values_in``; lists on the way are copied."""
    if len(where) == 1:
        values[str(where[0])] = value
        return
    name, number, key = where
    parts = [dict(part) for part in values[str(name)]]
    parts[int(number)][str(key)] = value
    values[str(name)] = parts


def _is_shared(check: SiteCheck) -> bool:
    """Return whether the run folder is here, by its token, and can be written to."""
    try:
        if (check.run_folder / check.token_file).read_text() != check.token:
            return False
        handle, probe = tempfile.mkstemp(".tmp", "job.json.", check.run_folder)
        os.close(handle)
        os.unlink(probe)
    except (OSError, ValueError):
        return False
    return True


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_bytes(memoryview(content))


_PREFIX = "evenload-site-"


class ScratchFolder:
    """A new folder, private to this user, in the machine's folder for temporary files.

    Its lock is held while the process lives: one whose lock is free is swept by whoever comes next.
    """

    def __init__(self) -> None:
        _sweep(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close(self) -> None:
        """Remove the folder with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _sweep(folder: Path) -> None:
    """Remove scratch folders of this user whose process has ended."""
    for left in folder.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another's, in use, or swept by somebody else meanwhile
            if left.lstat().st_uid != os.getuid():
                continue
            lock = os.open(left / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(lock)
