"""One run of a job while it runs: hands each stage's items to the executor and keeps what comes back."""

import contextlib
import dataclasses
import functools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evenload._version import __version__
from evenload.devices import DevicePool
from evenload.devices.telemetry import Telemetry
from evenload.errors import NoUsableDevice, TaskError
from evenload.events import (
    Event,
    EventFile,
    EventLog,
    ItemFailed,
    ItemFinished,
    Note,
    RunFinished,
    RunStarted,
    json_text,
)
from evenload.executor import Executor
from evenload.pipeline.folder import RunFolder
from evenload.pipeline.results import ItemFailure, ItemResult
from evenload.pipeline.spec import JobSpec, StageSpec
from evenload.pipeline.stage import Item, StageRunner, StageWorker
from evenload.pipeline.target import load_target, locate

__all__ = ["Session"]


@dataclass(slots=True)
class _Progress:
    """One item on its way. ``inputs`` stays as it is, ``outputs`` grows with each of its ``n_stages``."""

    item: Item
    inputs: Mapping[str, Any]
    outputs: dict[str, Any] = field(default_factory=dict)
    n_stages: int = 0
    error: ItemFailure | None = None

    def values(self, run_folder: Path, files: Iterable[str]) -> dict[str, Any]:
        """What the next stage gets; outputs in ``files`` as absolute paths."""
        values = {**self.inputs, **self.outputs}
        values.update((name, str(run_folder / self.outputs[name])) for name in files if name in self.outputs)
        return values


class _JobLog(EventLog):
    """An event log in which failed items have their names, and that remembers why they failed."""

    def __init__(self, *sinks: Callable[[Event], None]):
        super().__init__(*sinks)
        self.names: dict[str, list[str]] = {}
        self.failures: dict[tuple[str, int], ItemFailed] = {}

    def emit(self, event: Event) -> None:
        if isinstance(event, ItemFailed) and event.stage in self.names:
            event = dataclasses.replace(event, item=self.names[event.stage][event.index])
            self.failures[event.stage, event.index] = event
        super().emit(event)


class Session:
    """``go`` runs the stages, ``rows`` and ``headline`` say what came of it, ``finish`` ends the events.

    ``error`` is what ended the run for all items, to be raised once the results are written.
    """

    def __init__(
        self,
        spec: JobSpec,
        items: Iterable[tuple[Item, Mapping[str, Any]]],
        job_folder: Path,
        run_folder: RunFolder,
        sinks: Iterable[Callable[[Event], None]],
    ):
        self.status = "done"
        self.error: Exception | None = None
        self.headline: dict[str, Any] = {}
        self._spec = spec
        self._all = [_Progress(item, inputs) for item, inputs in items]
        self._job_folder = job_folder
        self._run_folder = run_folder
        self._log = _JobLog(*sinks)
        self._n_failed = 0
        self._stage = ""

    def go(self, pool: DevicePool, policy: str, backend: str, sample_s: float = 1.0) -> None:
        """Run every stage. Returns also when the run ends early: see ``status`` and ``error``.

        What the drivers say of the devices is recorded every ``sample_s`` seconds.
        """
        spec, log = self._spec, self._log
        facts = {"seed": spec.job.seed, "policy": policy, "backend": backend, "evenload": __version__}
        facts["stages"] = [stage.name for stage in spec.stages]
        log.emit(RunStarted(log.now(), spec.job.name, time.time(), len(self._all), pool.facts(), facts))
        try:
            with (
                self._watched(pool, sample_s),
                Executor(devices=pool, policy=policy, backend=backend, events=log) as executor,
            ):
                for number, stage in enumerate(spec.stages):
                    if self.status == "done":
                        self._run_stage(executor, number, stage)
        except KeyboardInterrupt:
            self.status = "interrupted"
        except NoUsableDevice as error:
            self._end(NoUsableDevice(f"no device can run stage {self._stage!r}", causes=error.causes))
        except Exception as error:  # the results so far are written, then it is raised
            self._end(error)

    @contextlib.contextmanager
    def _watched(self, pool: DevicePool, sample_s: float) -> Iterator[None]:
        """Sample the devices meanwhile. Drivers fail in their own ways; none of them is worth a run."""
        telemetry = Telemetry(pool, self._log, interval_s=sample_s)
        telemetry.start()
        try:
            yield
        finally:
            try:
                telemetry.stop()
            except Exception as error:
                text = f"telemetry did not close: {type(error).__name__}: {error}"
                self._log.emit(Note(self._log.now(), "warning", "telemetry", text))

    def _end(self, error: Exception) -> None:
        """``error`` is the end for all items."""
        self.status, self.error = "failed", error
        self._log.emit(Note(self._log.now(), "error", "pipeline", str(error)))

    def rows(self) -> list[ItemResult]:
        """One row for each item, in input order."""
        return [self._row(one) for one in self._all]

    def finish(self) -> None:
        """Make the headline figures and emit the run's last event."""
        if self.status == "done" and self._n_failed:
            self.status = "failures"
        self.headline = self._make_headline()
        self._log.emit(RunFinished(self._log.now(), self.status, self.headline))

    def lost_events(self, file: EventFile) -> list[str]:
        """What the record of the run lacks, one sentence each; complete once ``file`` is closed."""
        said = []
        if file.error is not None:
            why = f"{type(file.error).__name__}: {file.error}"
            said.append(f"events.jsonl stops early ({why}): report and summary show only what is in it")
        said += [
            f"a watcher of the run failed and was left out: {type(error).__name__}: {error}"
            for error in self._log.sink_errors
            if error is not file.error
        ]
        return said

    def _run_stage(self, executor: Executor, number: int, stage: StageSpec) -> None:
        self._stage = stage.name
        todo = [one for one in self._all if one.error is None and one.n_stages == number]
        place = {one.item.index: at for at, one in enumerate(todo)}
        # Events count within the stage, where items that failed earlier are not seen.
        self._log.names[stage.name] = [one.item.id for one in todo]
        files = [name for earlier in self._spec.stages[:number] for name in earlier.file_outputs]
        tasks = [(one.values(self._run_folder.path, files), one.item) for one in todo]
        runner: Any = functools.partial(StageRunner, self._worker(stage))
        results = executor.map(
            runner,
            tasks,
            ordered=False,
            on_error="return",
            stage=stage.name,
            repeatable=stage.repeatable,
        )
        with contextlib.closing(results):
            for result in results:
                if isinstance(result, TaskError):
                    self._fail(todo[result.index or 0], stage.name, result)
                    if self._must_stop():
                        self.status = "failed"
                        return
                else:
                    index, outputs = result
                    self._keep(todo[place[index]], place[index], stage, number, outputs)

    def _worker(self, stage: StageSpec) -> StageWorker:
        return StageWorker(
            stage=stage.name,
            target=locate(stage.target, self._job_folder),
            folder=self._job_folder,
            run_folder=self._run_folder.path,
            params=stage.params,
            call=stage.call,
            outputs=stage.outputs,
            seed=self._spec.job.seed,
            retries=self._spec.errors.retries,
        )

    def _keep(self, one: _Progress, at: int, stage: StageSpec, number: int, outputs: dict[str, Any]) -> None:
        one.outputs.update(outputs)
        one.n_stages = number + 1
        shown = {**outputs, **(self._before(one) if number == 0 else {})}
        self._log.emit(ItemFinished(self._log.now(), stage.name, at, one.item.id, shown))

    def _before(self, one: _Progress) -> dict[str, str]:
        """The copy of the item's file, if copies are to be kept."""
        path = one.inputs.get("path")
        if not self._spec.report.keep_inputs or not isinstance(path, str):
            return {}
        try:
            return {"before": self._run_folder.keep_input(one.item.id, Path(path))}
        except OSError as error:  # a copy for the report is not worth a run
            self._log.emit(Note(self._log.now(), "warning", "pipeline", f"no copy of {path}: {error}"))
            return {}

    def _fail(self, one: _Progress, stage: str, error: TaskError) -> None:
        event = self._log.failures.pop((stage, error.index or 0), None)
        kind, message = (event.error, event.message) if event else (type(error).__name__, error.message)
        one.error = ItemFailure(stage, kind, message, error.remote_traceback)
        self._n_failed += 1

    def _must_stop(self) -> bool:
        rule = self._spec.errors
        return rule.on_error == "stop" or self._n_failed > rule.max_error_rate * len(self._all)

    def _row(self, one: _Progress) -> ItemResult:
        is_done = one.n_stages == len(self._spec.stages)
        return ItemResult(
            index=one.item.index,
            id=one.item.id,
            status="failed" if one.error else "done" if is_done else "unfinished",
            seed=one.item.seed,
            group=one.item.group,
            inputs={name: self._portable(value) for name, value in one.inputs.items()},
            outputs=one.outputs,
            error=one.error,
        )

    def _portable(self, value: Any) -> Any:
        """A path below the job file's folder is given relative to it."""
        folder = str(self._job_folder)
        is_below = isinstance(value, str) and value.startswith(folder + "/")
        return value[len(folder) + 1 :] if is_below else value

    def _make_headline(self) -> dict[str, Any]:
        target = self._spec.report.headline
        if target is None:
            return {}
        try:
            figures = load_target(locate(target, self._job_folder))([row.to_json() for row in self.rows()])
            return json.loads(json_text({str(name): figure for name, figure in figures.items()}))
        except Exception as error:  # a mistake in a summary must not cost the results
            text = f"no headline: {target} raised {type(error).__name__}: {error}"
            self._log.emit(Note(self._log.now(), "warning", "pipeline", text))
            return {}
