"""``evenload run job.yaml``: a folder of things through stages of models, over every device."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evenload._optional import require
from evenload.cli.monitoring.monitoring import reporting, watch_options, watched
from evenload.events import json_text

if TYPE_CHECKING:
    from evenload.pipeline.dispatch.results import PipelineResult

__all__ = ["run"]

MOST_SHOWN = 10


@click.command()
@click.argument("job", type=click.Path(path_type=Path), required=False)
@click.option("--devices", help="all | cpu | cuda:0,1 | cpu*4 | a number; wins over the job file.")
@click.option("--policy", help="measured: slow devices hold back at the end | pull: they do not.")
@click.option("--backend", default="process", show_default=True, help="process | inline (to debug with).")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="The run folder; wins over the job file.")
@click.option("--resume", is_flag=True, help="Go on with the run in the folder; that is the default.")
@click.option("--fresh", "--overwrite", is_flag=True, help="Take an earlier run in the run folder away.")
@click.option("--report", type=click.Path(path_type=Path), help="Write the report here, too.")
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Set a key of the job file.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="The job's seed; short for --set job.seed=.")
@click.option("--dry-run", is_flag=True, help="Check everything, print the plan, run nothing.")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of job files, for editors.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but the result.")
@click.option("--no-progress", is_flag=True, help="No progress on stderr.")
@watch_options
def run(
    job: Path | None,
    devices: str | None,
    policy: str | None,
    backend: str,
    out: Path | None,
    resume: bool,
    fresh: bool,
    report: Path | None,
    changes: tuple[str, ...],
    seed: int | None,
    dry_run: bool,
    schema: bool,
    as_json: bool,
    quiet: bool,
    no_progress: bool,
    has_dash: bool,
    metrics_port: str | None,
    has_otel: bool,
) -> int:
    """Run the pipeline that the file JOB describes.

    \b
    evenload run examples/restore/job.yaml --devices cpu*2
    evenload run job.yaml --set job.seed=7 --set restore.weights=other.safetensors
    """
    if schema:
        require("pydantic", extra="yaml", why="describing job files")
        from evenload.pipeline.job.job_file import json_schema

        click.echo(json.dumps(json_schema(), indent=2))
        return 0
    if job is None:
        raise click.UsageError("Missing argument 'JOB': the path of a job file (YAML).")
    from evenload.pipeline.pipeline import Pipeline

    if resume and fresh:
        raise click.UsageError("--resume and --fresh exclude each other.")
    changes = changes if seed is None else (*changes, f"job.seed={seed}")
    if policy is not None:
        changes = (*changes, f"schedule.policy={policy}")
    pipeline = Pipeline.from_yaml(job, changes)
    for note in () if quiet else pipeline.spec.notes:
        click.echo(f"warning: {note}", err=True)
    if dry_run:
        plan = pipeline.plan(devices, backend=backend, out=out)
        click.echo(json.dumps(plan.to_json(), indent=2) if as_json else plan.to_text())
        return 0
    from evenload.pipeline.run.interrupts import Interrupts
    from evenload.report.progress import make_progress

    events = (out.resolve() if out is not None else pipeline.out) / "events.jsonl"
    with (
        Interrupts(),
        watched(pipeline.spec.job.name, events, has_dash=has_dash),
        reporting(metrics_port, has_otel) as sinks,
    ):
        with make_progress("never" if no_progress or quiet else "auto") as progress:
            result = pipeline.run(
                devices, backend=backend, out=out, fresh=fresh, report=report, sinks=[progress, *sinks]
            )
        for fault in result.faults:
            click.echo(f"warning: {fault}", err=True)
        click.echo(json_text(result.to_json(), indent=2) if as_json else text_of(result))
    return result.exit_code


def text_of(result: "PipelineResult") -> str:
    """The result for a terminal: failures, figures, and where everything is."""
    lines = [
        f"{name}: {failure.error.type}: {first_line(failure.error.message)}"
        for failure in result.failures[:MOST_SHOWN]
        if failure.error
        for name in [f"failed {failure.id} in {failure.error.stage}"]
    ]
    if len(result.failures) > MOST_SHOWN:
        lines.append(f"... and {len(result.failures) - MOST_SHOWN} more failures, see results.jsonl")
    lines.append(result.summary.headline())
    if result.status in ("interrupted", "failed"):
        lines.append(
            f"{result.status}: {len(result) - result.n_done - len(result.failures)} items are unfinished"
        )
    width = max((len(name) for name in result.headline), default=0)
    lines += [f"  {name:<{width}}  {figure}" for name, figure in result.headline.items()]
    lines.append(f"results  {result.folder / 'results.jsonl'}")
    if result.report is not None:
        lines.append(f"report   {result.report}")
    return "\n".join(lines).encode("utf-8", "backslashreplace").decode()


def first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else ""
