"""``evenload run job.yaml`` and ``retry``: a folder of things through stages of models, over every device."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evenload._optional import require
from evenload.cli.monitoring.attach import detach_option, start_detached
from evenload.cli.monitoring.monitoring import Monitors, monitor_options, reporting, watched
from evenload.cli.options import (
    PATH,
    argument,
    json_option,
    no_progress_option,
    option,
    page_json,
    passed_as,
    planning_limit_option,
    quiet_option,
    set_option,
    shared,
    skip_option,
)
from evenload.cli.pipeline.plan import PlanningProgress
from evenload.cli.pipeline.slurm import SlurmOptions, submit
from evenload.cli.pipeline.upload import UploadProgress
from evenload.errors import printable

if TYPE_CHECKING:
    from evenload.pipeline.dispatch.results import PipelineResult
    from evenload.pipeline.pipeline import Pipeline


_ALL = "\0"  # what stands for --fresh without a stage


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """The options of ``evenload run``."""

    job: Path | None = argument(type=PATH, required=False)
    devices: str | None = option(
        "--devices", help="all | cpu | cuda:0,1 | cpu*4 | a number; wins over the job file."
    )
    policy: str | None = option(
        "--policy", help="measured: the last items go to the faster devices | pull: to whoever is free | ..."
    )
    backend: str | None = option(
        "--backend", help="process | ray (a cluster) | inline (to debug with); wins over the job file."
    )
    out: Path | None = option("-o", "--out", type=PATH, help="The run folder; wins over the job file.")
    resume: bool = option(
        "--resume", is_flag=True, help="Go on with the run in the folder; that is the default."
    )
    fresh: tuple[str, ...] = option(
        "--fresh",
        "--overwrite",
        is_flag=False,
        flag_value=_ALL,
        multiple=True,
        metavar="[STAGE,...]",
        help="Do these stages again; without a name, delete an earlier run's results first.",
    )
    cache: Path | None = option(
        "--cache", type=PATH, help="Share results with other runs through this folder."
    )
    report: Path | None = option("--report", type=PATH, help="Write the report here, too.")
    upload: str | None = option(
        "--upload", metavar="URL", help="Copy results there, such as s3://bucket/folder."
    )
    changes: tuple[str, ...] = shared(set_option)
    skipped: tuple[str, ...] = shared(skip_option)
    seed: int | None = option(
        "--seed", type=click.IntRange(0, 2**63 - 1), help="The job's seed; short for --set job.seed=."
    )
    time_limit: float | None = shared(planning_limit_option)
    dry_run: bool = option(
        "--dry-run", is_flag=True, help="Check all, import the stages' code, print the plan, run nothing."
    )
    is_detached: bool = shared(detach_option)
    schema: bool = option("--schema", is_flag=True, help="Print the JSON Schema of job files, for editors.")
    as_json: bool = shared(json_option)
    quiet: bool = shared(quiet_option)
    no_progress: bool = shared(no_progress_option)

    def pipeline(self) -> "Pipeline":
        """The job file with the changes of the command line. Raises UsageError, ConfigError, SpecError."""
        from evenload.pipeline.pipeline import Pipeline

        if self.job is None:
            raise click.UsageError("Missing argument 'JOB': the path of a job file (YAML).")
        if self.resume and self.fresh:
            raise click.UsageError("--resume and --fresh exclude each other.")
        if _ALL in self.fresh and len(self.fresh) > 1:
            raise click.UsageError("--fresh alone does all stages again; name those that you mean.")
        more = {"job.seed": self.seed, "schedule.policy": self.policy, "upload.to": self.upload}
        changes = [f"{key}={value}" for key, value in more.items() if value is not None]
        return Pipeline.from_yaml(self.job, (*self.changes, *changes))

    @property
    def arguments(self) -> list[str]:
        """The command line of this run without ``--fresh``, as another machine is to be given it."""
        options = {
            "--devices": self.devices,
            "--policy": self.policy,
            "--out": self.out and self.out.resolve(),
            "--cache": self.cache and self.cache.resolve(),
            "--report": self.report and self.report.resolve(),
            "--upload": self.upload,
            "--seed": self.seed,
            "--time-limit": self.time_limit,
        }
        flags = {"--json": self.as_json, "--quiet": self.quiet}
        assert self.job is not None
        return [
            *("run", str(self.job.resolve()), "--no-progress"),
            *(f"{name}={value}" for name, value in options.items() if value is not None),
            *(name for name, is_given in flags.items() if is_given),
            *(f"--set={change}" for change in self.changes),
            *(f"--skip={item}" for item in self.skipped),
        ]

    @property
    def fresh_arguments(self) -> list[str]:
        """``--fresh`` as it was given."""
        return ["--fresh"] if _ALL in self.fresh else [f"--fresh={text}" for text in self.fresh]

    @property
    def done_again(self) -> bool | list[str]:
        """What ``--fresh`` asks for: everything, or some stages."""
        named = [name.strip() for text in self.fresh for name in text.split(",") if name.strip()]
        return True if _ALL in self.fresh else named


@click.command()
@passed_as(SlurmOptions, "slurm")
@monitor_options
@passed_as(RunRequest)
def run(request: RunRequest, monitors: Monitors, slurm: SlurmOptions) -> int:
    """Run the pipeline that the file JOB describes.

    \b
    evenload run examples/restore/job.yaml --devices cpu*2
    evenload run job.yaml --set job.seed=7 --set restore.weights=other.safetensors
    """
    if request.schema:
        require("pydantic", extra="jobs", why="describing job files")
        from evenload.pipeline.job.job_file import json_schema

        click.echo(page_json(json_schema(), indent=2))
        return 0
    if request.job is None and request.fresh:
        *named, last = request.fresh  # in `run --fresh job.yaml` it is no stage
        request = replace(request, job=Path(last), fresh=(*named, _ALL)) if last != _ALL else request
    pipeline = request.pipeline()
    for note in () if request.quiet else pipeline.spec.notes:
        click.echo(f"warning: {note}", err=True)
    if slurm.slurm:
        return _submit(pipeline, request, monitors, slurm)
    if slurm.given:
        raise click.UsageError(f"{', '.join(slurm.given)} only go with --slurm.")
    if request.dry_run:
        pipeline.try_imports()
        plan = pipeline.plan(
            devices=request.devices,
            backend=request.backend,
            out=request.out,
            fresh=request.done_again,
            cache=request.cache,
        )
        click.echo(page_json(plan.to_json(), indent=2) if request.as_json else plan.to_text())
        return 0
    if request.is_detached:
        return start_detached(request.out.resolve() if request.out is not None else pipeline.out)
    return _run(pipeline, request, monitors).exit_code


def _submit(pipeline: "Pipeline", request: RunRequest, monitors: Monitors, slurm: SlurmOptions) -> int:
    """Submit the same command to Slurm, over a Ray cluster of the nodes that it gives."""
    if request.is_detached:
        raise click.UsageError("--slurm goes on by itself: leave --detach out.")
    if request.backend not in (None, "ray"):
        raise click.UsageError("--slurm runs over Ray on the job's nodes: leave --backend out.")
    if monitors.has_dash or monitors.metrics_port is not None or monitors.has_otel:
        raise click.UsageError(
            "--slurm has no --dash, --metrics-port or --otel: `evenload dash RUN` follows it."
        )
    over_ray = ["--set=backend={name: ray, follow: true}"]
    arguments = [*request.arguments, *over_ray]
    return submit(slurm, pipeline.spec.job.name, arguments, request.fresh_arguments, dry_run=request.dry_run)


def _run(pipeline: "Pipeline", request: RunRequest, monitors: Monitors) -> "PipelineResult":
    from evenload.pipeline.run.interrupts import Interrupts
    from evenload.report.progress import make_progress

    folder = request.out.resolve() if request.out is not None else pipeline.out
    with (
        Interrupts(),
        watched(pipeline.spec.job.name, folder / "events.jsonl", has_dash=monitors.has_dash),
        reporting(monitors) as sinks,
    ):
        with make_progress("never" if request.no_progress or request.quiet else "auto") as progress:
            result = pipeline.run(
                devices=request.devices,
                backend=request.backend,
                out=request.out,
                fresh=request.done_again,
                skip=request.skipped,
                cache=request.cache,
                report=request.report,
                watch=PlanningProgress(
                    request.time_limit, shows=not request.no_progress and not request.quiet
                ),
                sinks=[progress, *sinks],
                watch_upload=UploadProgress(
                    f"Ctrl-C leaves the rest to: evenload upload {folder}",
                    shows=not request.no_progress and not request.quiet,
                ),
            )
        echo_result(result, request.as_json)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRequest:
    """The options of ``evenload retry``."""

    run: Path = argument(type=PATH)
    failed: bool = option("--failed", is_flag=True, help="Items that failed or were stopped are tried again.")
    devices: str | None = option(
        "--devices", help="all | cpu | cuda:0,1 | cpu*4 | a number; wins over the job."
    )
    backend: str | None = option(
        "--backend", help="process | ray | inline (to debug with); wins over the job."
    )
    changes: tuple[str, ...] = shared(set_option)
    skipped: tuple[str, ...] = shared(skip_option)
    as_json: bool = shared(json_option)
    quiet: bool = shared(quiet_option)
    no_progress: bool = shared(no_progress_option)


@click.command()
@passed_as(RetryRequest)
def retry(request: RetryRequest) -> int:
    """Go on with the run in the folder RUN, with the same job; with --failed, try failed items again.

    \b
    evenload retry --failed runs/pairs
    evenload retry --failed runs/pairs --set errors.timeout_s=600 --skip r7
    """
    from evenload.pipeline.pipeline import Pipeline
    from evenload.pipeline.run.interrupts import Interrupts
    from evenload.report.progress import make_progress

    pipeline = Pipeline.from_run(request.run, request.changes)
    with Interrupts():
        with make_progress("never" if request.no_progress or request.quiet else "auto") as progress:
            result = pipeline.run(
                devices=request.devices,
                backend=request.backend,
                out=request.run,
                retry_failed=request.failed,
                skip=request.skipped,
                sinks=[progress],
            )
        echo_result(result, request.as_json)
    return result.exit_code


MOST_SHOWN = 10


def echo_result(result: "PipelineResult", as_json: bool) -> None:
    """Print the result as text or as one JSON object; faults of the run as warnings on stderr."""
    for fault in result.faults:
        click.echo(f"warning: {fault}", err=True)
    click.echo(page_json(result.to_json(), indent=2) if as_json else _text(result))


def _text(result: "PipelineResult") -> str:
    """The result for a terminal: failures, figures, and where everything is."""
    lines = [
        f"{name}: {failure.error.type}: {_first_line(failure.error.message)}{place}"
        for failure in result.failures[:MOST_SHOWN]
        if failure.error
        for name in [f"failed {failure.id} in {failure.error.stage}"]
        for place in [f" ({printable(failure.error.place)})" if failure.error.place else ""]
    ]
    if len(result.failures) > MOST_SHOWN:
        lines.append(f"... and {len(result.failures) - MOST_SHOWN} more failures, see results.jsonl")
    hints = (_hint(failure.error.message) for failure in result.failures[:MOST_SHOWN] if failure.error)
    lines += [f"  hint: {hint}" for hint in dict.fromkeys(hints) if hint]
    lines.append(result.summary.headline())
    if result.status in ("interrupted", "failed", "timed out"):
        lines.append(f"{result.status}: {result.item_counts['unfinished']} items are unfinished")
    width = max((len(name) for name in result.headline), default=0)
    lines += [f"  {name:<{width}}  {figure}" for name, figure in result.headline.items()]
    lines.append(f"results  {result.folder / 'results.jsonl'}")
    if result.report is not None:
        lines.append(f"report   {result.report}")
    if result.upload is not None and not result.upload["n_left"]:
        lines.append(f"copies   {result.upload['to']} ({result.upload['n_files']} files)")
    return "\n".join(lines).encode("utf-8", "backslashreplace").decode()


def _hint(text: str) -> str:
    """Return what an error says is to be done, in its last line; "" if it says nothing."""
    last = text.strip().splitlines()[-1:]
    return last[0].strip().removeprefix("hint: ") if last and last[0].strip().startswith("hint: ") else ""


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else ""
