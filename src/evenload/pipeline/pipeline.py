"""A job from its file, or its Python, to its report.

    job.yaml ──► JobSpec, items ──► phases of the plan ──► JobSession over all devices ──► run folder, report

A run folder that holds results of the same job is gone on with: only what is missing is done.

Failures belong to their item: it goes no further, the others do. Whatever ends a run early (a failure with
``on_error: stop``, Ctrl-C, SIGTERM), what is done is written.
"""

import contextlib
import functools
import json
import os
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from evenload._optional import require
from evenload._private_files import OwnFolder, open_named
from evenload.balance.policy import policy_from_name
from evenload.errors import ConfigError, UnknownName, quoted
from evenload.events import Event, EventFile, json_text
from evenload.executor.backends import BACKENDS, BackendSettings
from evenload.pipeline.artifacts import digest_of, write_atomically
from evenload.pipeline.dispatch.item_flow import check_ids
from evenload.pipeline.dispatch.results import ItemResult, PipelineResult
from evenload.pipeline.job.model_files import check_models
from evenload.pipeline.job.stage_devices import barred_stages
from evenload.pipeline.planning.preview import PlannedDevice, PlannedStage, Preview
from evenload.pipeline.run.interrupts import Interrupts
from evenload.pipeline.target import locate_target

if TYPE_CHECKING:
    from evenload.pipeline.dispatch.item_flow import ItemFlow
    from evenload.pipeline.job.inputs import Items
    from evenload.pipeline.job.spec import JobSpec
    from evenload.pipeline.planning.job_plan import PlannedJob
    from evenload.pipeline.planning.planner import Watch
    from evenload.pipeline.reuse.decision import StageReuse
    from evenload.pipeline.run.ending.read_run import RunCounter
    from evenload.pipeline.run.machines.fleet import RunFleet
    from evenload.pipeline.run.session import JobSession
    from evenload.pipeline.store.kept_results import ReuseSettings
    from evenload.pipeline.store.run_folder import FinalWrites, RunFolder

__all__ = ["ItemResult", "Pipeline", "PipelineResult"]

WHAT = "a job, which is code"
MOST_BYTES = 1 << 26


class Pipeline:
    """A job that is known to be sound: the stages it names, and its items where it has some, were checked.

        Pipeline([Brighten, Stage(Score, outputs={"score": "number"})], name="pairs").run(items)

    stages  each a ``Stage``, or the class or function of one
    folder  that relative paths in the job belong to, the run folder among them: by default the present one
    keys    ``name``, ``seed`` and the other keys of the section ``job`` of a job file, and its other
            sections: ``devices="cpu*2"``, ``errors={"retries": 1}``
    ``spec`` is the job as values, ``items`` what it is done on, if that is known.
    Raises SpecError with every fault found, MissingExtra without pydantic.
    """

    def __init__(self, stages: Iterable[Any], *, folder: str | Path = ".", **keys: Any):
        require("pydantic", extra="jobs", why="checking a job")
        from evenload.pipeline.job.job_file import items_of, job_document, lacks_source, spec_of
        from evenload.pipeline.job.yaml_text import Origins

        place = Path(folder).resolve()
        document, faults = job_document(stages, keys, place)
        is_given = lacks_source(keys.get("inputs", {}))
        spec = spec_of(document, Origins("the pipeline"), place, faults, is_given=is_given)
        self._hold(spec, None if is_given else items_of(spec, place), place)

    def _hold(self, spec: "JobSpec", items: "Items | None", folder: Path, *, has_rows: bool = False) -> Self:
        """Take a job that was checked. ``has_rows``: a program gave its items, and no file has them yet."""
        self.spec, self.folder, self.items = spec, folder, items or []
        self._lacks_items, self._has_rows = items is None, has_rows
        return self

    @classmethod
    def from_yaml(cls, path: str | Path, changes: Iterable[str] = ()) -> "Pipeline":
        """Read a job file and list its items. ``changes`` are ``key=value`` texts that win over the file.

        Raises SpecError with every fault found, MissingExtra without pydantic or PyYAML.
        """
        require("pydantic", extra="jobs", why="reading job files")
        from evenload.pipeline.job.job_file import load_job

        return cls.__new__(cls)._hold(*load_job(path, changes), Path(path).resolve().parent)

    @classmethod
    def from_run(cls, path: str | Path, changes: Iterable[str] = ()) -> "Pipeline":
        """The job of an earlier run, from its run folder. ``changes`` as for ``from_yaml``.

        Raises ConfigError if that holds none, or if others may have written it: a job file is code.
        """
        require("pydantic", extra="jobs", why="reading job files")
        from evenload.pipeline.job.job_file import parse_job

        path = Path(path)
        try:
            with OwnFolder(path.resolve(), WHAT) as run:
                folder = Path(json.loads(run.read("job.json", MOST_BYTES))["folder"])
                text = run.read("config.yaml", MOST_BYTES).decode()
        except ConfigError:
            raise
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            from evenload.pipeline.store.run_folder import is_of_other_kind, no_job_in

            if is_of_other_kind(path):
                raise no_job_in(path) from error
            raise ConfigError(
                f"{path} is not the folder of a run that can be gone on with ({type(error).__name__})",
                hint="give the folder that `evenload run` printed",
            ) from error
        return cls.__new__(cls)._hold(*parse_job(text, folder, str(path / "config.yaml"), changes), folder)

    @property
    def out(self) -> Path:
        """The run folder, where ``run`` is given none."""
        return (self.folder / (self.spec.job.out or f"runs/{self.spec.job.name}")).resolve()

    def on(self, items: Any) -> "Pipeline":
        """Return the same stages with other items, as ``run`` takes them; None: with its own.

        Raises SpecError with all that is wrong with them, ConfigError if they are no items or there are none.
        """
        from evenload.pipeline.job.job_file import SOURCES, items_of, lacks_source, spec_of, with_inputs

        if items is None and not self._lacks_items:
            return self
        if items is None or (isinstance(items, Mapping) and lacks_source(items)):
            raise ConfigError(
                "there are no items" if items is None else f"{quoted(items)} are no items",
                hint='give run a list of dicts, of values or of paths, or inputs: {"glob": "in/*.png"}',
            )
        is_given = not isinstance(items, Mapping)
        inputs = self.spec.job.inputs.model_dump(exclude_unset=True, exclude=set(SOURCES))
        inputs |= {} if is_given else items
        document = with_inputs(self.spec.model_dump(exclude_unset=True), inputs)
        spec = spec_of(document, self.spec.origins, self.folder, is_given=is_given)
        found = items_of(spec, self.folder, items if is_given else None)
        return Pipeline.__new__(Pipeline)._hold(spec, found, self.folder, has_rows=is_given)

    def to_yaml(self, items: Any = None, path: str | Path | None = None) -> str:
        """Return the job as the text of a job file in ``folder``, which does the same from the command line.

        items  as for ``run``; where they are values, their table has the name of the job file
        path   write the job file there, and that table beside it
        Raises ConfigError if code is in no file, which YAML could name, or ``path`` is not in ``folder``.
        """
        from evenload.pipeline.job.job_file import ROWS

        file = self.folder / (path or "job.yaml")
        if file.resolve().parent != self.folder:
            raise ConfigError(
                f"paths in the job do not belong to the folder of {file}", hint=f"write it to {self.folder}"
            )
        if live := [stage.name for stage in self.spec.stages if stage.live]:
            raise ConfigError(
                f"YAML cannot name the code of {', '.join(live)}: no module but this program has it",
                hint="move it to a file, such as stages.py, at the top, and import it from there",
            )
        job = self if items is None else self.on(items)
        table = ROWS if path is None else f"{file.stem}.jsonl"
        text = job._text(table, None if path is None else file.with_name(table), has_defaults=False)
        if path is not None:
            write_atomically(file, text.encode())
        return text

    def _text(self, shown: str, table: Path | None, *, has_defaults: bool = True) -> str:
        """Return the job as YAML. Items that a program gave become ``table``, which YAML names ``shown``."""
        from evenload.pipeline.job.job_file import spec_text

        spec = self.spec
        if self._has_rows:
            rows = (json_text({spec.job.inputs.id: item.id, **values}) for item, values in self.items)
            if table is not None:
                write_atomically(table, "".join(f"{row}\n" for row in rows).encode())
            inputs = spec.job.inputs.model_copy(update={"jsonl": shown})
            spec = spec.model_copy(update={"job": spec.job.model_copy(update={"inputs": inputs})})
        return spec_text(spec, has_defaults=has_defaults)

    def plan(
        self,
        items: Any = None,
        devices: Any = None,
        *,
        policy: str | None = None,
        backend: str | BackendSettings | None = None,
        out: str | Path | None = None,
        fresh: bool | Collection[str] = False,
        cache: str | Path | None = None,
    ) -> Preview:
        """What ``run`` would do with the same arguments, and what it would not do again; starts nothing.

        Raises what ``on`` raises, ConfigError if ``fresh`` names no stage, or a stage a device that takes no
        part, FormatError if a file of weights is damaged, NoUsableDevice if models landed on the CPU, and
        what selecting the devices raises.
        """
        from evenload.pipeline.planning.job_plan import stage_weight_bytes
        from evenload.pipeline.store.kept_results import preview_reuse

        items, devices = _items_and_devices(items, devices)
        self = self.on(items)
        policy = policy or self.spec.schedule.policy
        folder = Path(out).resolve() if out is not None else self.out
        fleet = self.fleet(devices, policy=policy, backend=backend)
        check_models(self.spec, self.folder)
        with fleet:
            pool = fleet.pool
            fleet.refuse_cpu(self.spec.stages)
            barred_stages(self.spec, pool.ids)
            found = tuple(PlannedDevice(d.id, d.name, pool.score(d.id), d.memory_bytes) for d in pool)
        graph, names = self.spec.graph, [stage.name for stage in self.spec.stages]
        stages = tuple(
            PlannedStage(
                stage.name,
                str(stage.code[0][1] if stage.code else stage.target),
                stage_weight_bytes(stage, self.folder),
                dict(stage.outputs),
                str(stage.devices or ""),
                None if graph.is_chain else tuple(names[need] for need in needs),
            )
            for stage, needs in zip(self.spec.stages, graph.needs, strict=True)
        )
        with contextlib.nullcontext() if fresh is True else self._reusing(cache, fresh or ()) as reuse:
            kept = [] if reuse is None else preview_reuse(self.spec, self.items, reuse, folder)
        return Preview(
            job=self.spec.job.name,
            n_items=len(self.items),
            groups=dict(Counter(item.group for item, _ in self.items if item.group is not None)),
            seed=self.spec.job.seed,
            policy=policy,
            backend=fleet.name,
            devices=found,
            stages=stages,
            out=folder,
            upload=self.spec.upload.to if self.spec.upload is not None else "",
            kept=tuple(one.to_json() for one in kept),
            reuse="; ".join(one.to_text() for one in kept),
        )

    def try_imports(self) -> None:
        """Import the code of the stages, as their workers would, in a process of its own.

        Stages with an interpreter of their own are left out. Raises SpecError with what cannot be imported.
        """
        from evenload.pipeline.worker.import_check import import_faults

        places, targets = [], []
        for number, stage in enumerate(self.spec.stages):
            for key, code in stage.code if stage.python is None else ():
                if isinstance(code, str):
                    places.append(("stages", number, *key))
                    targets.append(locate_target(code, self.folder))
        told = zip(places, import_faults(targets), strict=True)
        if faults := [(place, text) for place, text in told if text]:
            raise self.spec.origins.error(faults)

    def fleet(
        self, devices: Any = None, *, policy: str = "measured", backend: str | BackendSettings | None = None
    ) -> "RunFleet":
        """The devices that the job runs on, with the backend that reaches them; a context.

        The arguments win over the job file. Raises UnknownName or ConfigError on names that are none.
        """
        from evenload.pipeline.run.machines.fleet import RunFleet, backend_of, imports_of

        policy_from_name(policy)  # a typo is refused before there is a run folder
        if isinstance(backend, str) and backend not in BACKENDS:
            raise UnknownName("backend", backend, BACKENDS)
        use = self.spec.devices.use if devices is None else devices
        settings, follows = backend_of(self.spec.backend, backend)
        live = [(n, *one) for n, stage in enumerate(self.spec.stages) for one in stage.live]
        sent = live if settings != "inline" else ()
        if faults := [(("stages", n, *place), code.fault) for n, place, code in sent if code.fault]:
            raise self.spec.origins.error(faults)
        imports = imports_of(self.spec.stages, self.folder) if settings != "inline" else ()
        return RunFleet(use, settings, policy=policy, follows=follows, imports=imports)

    def run(
        self,
        items: Any = None,
        devices: Any = None,
        *,
        policy: str | None = None,
        backend: str | BackendSettings | None = None,
        out: str | Path | None = None,
        fresh: bool | Collection[str] = False,
        retry_failed: bool = False,
        skip: Iterable[str] = (),
        cache: str | Path | None = None,
        report: str | Path | None = None,
        watch: "Watch | None" = None,
        sinks: Iterable[Callable[[Event], None]] = (),
        sample_s: float = 1.0,
        watch_upload: Callable[[int, int], None] | None = None,
    ) -> PipelineResult:
        """Run the job, or go on with it, and write its run folder.

        items             a list, frame or generator of dicts (their ``id`` names them, by default their
                          position), of paths (``inputs["path"]``) or of other values
                          (``inputs["value"]``); or what a job file has as ``inputs``, such as
                          {"glob": "in/*.png"}; by default the job's own
        devices, policy, backend  win over those of the job
        out               the run folder; results in it that are still the job's are kept, the rest is done
        fresh             take an earlier run in the folder away, or do these stages again
        retry_failed      try items again that failed in an earlier run
        skip              ids of items and parts that are left out; a later run does them
        cache             a folder in which runs of any job keep results for each other; wins over the job's
        report            write the report here, not into the run folder
        watch             told how far the search for a plan is, as in ``make_plan``
        sinks             get every event as it happens
        sample_s          seconds from one look at the devices' load and memory to the next
        watch_upload      told at the end how many files are still to be copied, of how many

        Raises what ``on`` raises; ConfigError if no item has an id of ``skip``, ``fresh`` names no stage, a
        stage is to run on a device that takes no part, the folder holds something else, others may write to
        the cache, or the report has no place; FormatError if a model's folder is not whole; NoUsableDevice if
        no device can run a stage (what earlier stages gave is written first), or models landed on the CPU;
        EvenloadError if the disk is full. Failed items raise nothing: see ``PipelineResult.failures``.
        """
        from evenload.pipeline.run.ending.on_done import tell_done
        from evenload.pipeline.run.ending.uploading import finish_uploads, open_store_of

        items, devices = _items_and_devices(items, devices)
        self = self.on(items)
        fleet = self.fleet(devices, policy=policy or self.spec.schedule.policy, backend=backend)
        skipped = frozenset(skip)
        expands = {stage.expand for stage in self.spec.stages if stage.expand is not None}
        check_ids(sorted(skipped), {item.id for item, _ in self.items}, expands)
        if report is not None:
            _check_place(Path(report))
        check_models(self.spec, self.folder)
        store = open_store_of(self.spec.upload)
        again = () if isinstance(fresh, bool) else tuple(fresh)
        with Interrupts() as interrupts, fleet:
            fleet.refuse_cpu(self.spec.stages)
            barred_stages(self.spec, fleet.pool.ids)
            fleet.expect_workers()
            from evenload.pipeline.run.ending.read_run import RunCounter  # beside the start of the workers
            from evenload.pipeline.run.session import JobSession
            from evenload.pipeline.store.run_folder import FinalWrites, RunFolder

            with (
                self._reusing(cache, again, retry_failed) as reuse,
                RunFolder.opened(Path(out) if out is not None else self.out, fresh=fresh is True) as folder,
                store.uploads(folder) as uploads,
            ):
                table = folder.file("items.jsonl")
                text = f"# Paths are relative to {self.folder}\n{self._text(str(table), table)}"
                folder.write_text("config.yaml", text)
                folder.begin(self.folder, self._made_of(reuse))
                is_shown = self.spec.report.html or report is not None
                with EventFile(folder.file("events.jsonl")) as file:
                    counter = RunCounter(is_shown=is_shown, is_whole=file.is_new)
                    session = JobSession(
                        self.spec,
                        self.items,
                        self.folder,
                        folder,
                        [file, counter, *sinks],
                        reuse=reuse,
                        interrupts=interrupts,
                        may_use_cpu=fleet.may_use_cpu,
                        skipped=skipped,
                        uploads=uploads,
                    )
                    plan = functools.partial(self._planned, fleet, folder, watch)
                    session.go(fleet, plan, sample_s)
                    interrupts.hold()
                    session.finish()
                counter.is_whole &= file.error is None  # the report shows what can be read again
                last = FinalWrites()
                result = self._write(session, folder, report, counter, session.lost_events(file), last)
                waits = session.status != "interrupted"
                upload, lacking = finish_uploads(uploads, interrupts, waits=waits, watch=watch_upload)
                facts = None if upload is None else asdict(upload)
                result = replace(result, faults=[*result.faults, *lacking], upload=facts)
                told = tell_done(self.spec.on_done, result, self.spec.job.name, self.folder)
                last.raise_with(session.error)
                return replace(result, faults=[*result.faults, *told])

    def _reusing(
        self, cache: str | Path | None, fresh: Iterable[str] = (), retry_failed: bool = False
    ) -> "contextlib.AbstractContextManager[ReuseSettings]":
        from evenload.pipeline.store.kept_results import reuse_settings

        return reuse_settings(
            self.spec, self.folder, cache=cache, fresh=tuple(fresh), retries_failed=retry_failed
        )

    def _made_of(self, reuse: "ReuseSettings") -> str:
        """Digest what the events of a run are about: its stages, and who goes through them."""
        rules = [(stage.name, stage.when, stage.samples, str(stage.best)) for stage in self.spec.stages]
        made: list[Any] = [[one.digest for one in reuse.identities], rules, self.spec.job.seed]
        if not self.spec.graph.is_chain:
            made.append(self.spec.graph.needs)
        return digest_of(json_text(made).encode("utf-8", "replace"))

    def _planned(
        self,
        fleet: "RunFleet",
        folder: "RunFolder",
        watch: "Watch | None",
        flow: "ItemFlow | None",
        reuse: "Sequence[StageReuse]",
    ) -> "PlannedJob":
        """Plan what is left of ``flow`` (None: all), by mode, free memory and what is known of times."""
        from evenload.pipeline.planning.estimates.run_history import StageHistory, read_history
        from evenload.pipeline.planning.job_plan import (
            PlannedJob,
            build_job_problem,
            plan_job,
            pool_devices,
            tasks_an_item,
        )
        from evenload.pipeline.run.replanner import tasks_done

        history = {one.name: StageHistory(one.item_s) for one in reuse}
        if folder.is_resumed:
            with contextlib.suppress(ConfigError):  # it was killed before it had a summary
                history |= {n: one for n, one in read_history(folder.path).items() if one.item_s is not None}
        done = () if flow is None else tasks_done(flow, tasks_an_item(self.spec), self.spec.graph.needs)
        asked = build_job_problem(
            self.spec,
            len(self.items),
            self.folder,
            pool_devices(fleet.pool, fleet.free_bytes()),
            history=history,
            host_bytes=fleet.host_bytes(),
            done=done,
            policy=fleet.policy,
        )
        plan = plan_job(self.spec, asked, watch=watch)
        folder.write_text("plan.json", json_text(plan.to_json(), indent=2) + "\n")
        return PlannedJob(plan, asked)

    def _write(
        self,
        session: "JobSession",
        folder: "RunFolder",
        report: str | Path | None,
        counter: "RunCounter",
        faults: list[str],
        last: "FinalWrites",
    ) -> PipelineResult:
        from evenload.pipeline.job.openai_batch import batch_line
        from evenload.pipeline.run.ending.read_run import read_run

        rows = session.rows()
        with last.of("outputs"):
            folder.sweep()  # what workers that died were writing
        with last.of("results.jsonl"):
            folder.write_results(row.to_json() for row in rows)
        if self.spec.job.inputs.openai_batch is not None:
            with last.of("openai_batch.jsonl"):
                folder.write_text("openai_batch.jsonl", "".join(batch_line(row.to_json()) for row in rows))
        is_shown = self.spec.report.html or report is not None
        events, summary, view, lacking = read_run(folder.path, is_shown=is_shown, counter=counter)
        unread, faults = events.faults(), [*faults, *lacking]
        result = PipelineResult(
            folder.path, session.status, rows, summary, session.headline, None, faults, session.n_restored
        )
        more = {"headline": session.headline, "faults": faults, "n_restored": session.n_restored}
        more["counts"] = result.counts
        with last.of("summary.json"):
            folder.write_summary({**summary.to_json(), **more, "measured": session.measured})
        if self.spec.report.trace:
            from evenload.report.trace import write_trace

            with last.of("trace.json"):
                write_trace(events, folder.file("trace.json"))
        page = None
        if view is not None:
            from evenload.report.html import write_view

            page = Path(report) if report is not None else folder.file("report.html")
            with last.of(page.name):
                write_view(view, summary, page, folder.path, [*faults, *unread])
        return replace(result, report=page)


def _items_and_devices(items: Any, devices: Any) -> tuple[Any, Any]:
    """Tell items from devices, which stood there until 0.3."""
    if not isinstance(items, str | int):
        return items, devices
    warnings.warn(f"write devices={quoted(items)}: items come first", DeprecationWarning, stacklevel=3)
    return None, items


def _check_place(report: Path) -> None:
    """Refuse a report that cannot be written before hours of work, not after. Raises ConfigError.

    A file that is no page stays: it may be what the job reads, or results.
    """
    folder = report.resolve().parent
    why = ""
    if report.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        why = "it is a folder" if report.is_dir() else f"{folder} is no folder that can be written to"
    elif report.is_file():
        begin = b"not readable"
        with contextlib.suppress(OSError), open_named(report) as file:
            begin = file.read(9).lower()
        why = "" if begin in (b"", b"<!doctype") else "a file that is no page of HTML is there"
    if why:
        raise ConfigError(
            f"the report cannot be written to {quoted(str(report))}: {why}", hint="give another --report"
        )
