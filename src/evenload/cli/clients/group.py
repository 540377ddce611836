"""``evenload clients run fl.yaml``: federated rounds; ``check`` them; ``tune`` and ``compare`` strategies."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from evenload.cli.clients.job_parts import load_job
from evenload.cli.clients.run import run
from evenload.cli.options import PATH, json_option, passed_as
from evenload.cli.terminal.table import format_table
from evenload.errors import UnknownName


@click.group()
def clients() -> None:
    """Train many small models at once: federated rounds of a job file."""


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """The options of ``evenload clients check``."""

    job: Path
    strategy: str | None
    as_json: bool


@click.command()
@click.argument("job", type=PATH)
@click.option("--strategy", help="How clients are trained, as in the file, which it wins over.")
@json_option
@passed_as(CheckRequest)
def check(request: CheckRequest) -> int:
    """Train JOB's first clients for a few steps, and beside it a plain loop of torch; 1 if they differ."""
    parts = load_job(request.job)
    from evenload.clients.training import check_plainly

    job = parts.job
    strategy = request.strategy or job.strategy
    found = check_plainly(parts.model, parts.datasets, job.recipe, strategy=strategy, seed=job.seed)
    if request.as_json:
        clients = [{**asdict(one), "is_equal": one.is_equal} for one in found]
        click.echo(json.dumps({"schema": 1, "clients": clients}))
    else:
        click.echo("\n".join(map(str, found)))
    return 0 if all(one.is_equal for one in found) else 1


clients.add_command(check)


@dataclass(frozen=True, slots=True)
class CompareRequest:
    """The options of ``evenload clients compare``."""

    job: Path
    ways: str | None
    workers: int | None
    chunk: int | None
    batch_size: int | None
    devices: str
    repeats: int
    as_json: bool


@click.command()
@click.argument("job", type=PATH)
@click.option("--ways", help="Of serial,threads,processes,merged,fused,streams,devices; all by default.")
@click.option(
    "--workers", "--max-workers", "workers", type=click.IntRange(1), help="Threads, processes or streams."
)
@click.option("--chunk", type=click.IntRange(1), help="Clients in a fused step; all of them by default.")
@click.option("--batch-size", type=click.IntRange(1), help="Rows of a client's step; wins over the file.")
@click.option("--devices", default="all", show_default=True, help="What devices and streams run on.")
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True, help="Warm rounds of each.")
@json_option
@passed_as(CompareRequest)
def compare(request: CompareRequest) -> int:
    """Train the first cohort of JOB in every way: times, accuracy, distance from serial, and advice."""
    parts = load_job(request.job, request.batch_size)
    from evenload.clients.comparison import WAYS, advice, compare_ways

    ways = request.ways.split(",") if request.ways else list(WAYS)
    for way in ways:
        if way not in WAYS:
            raise UnknownName("way", way, WAYS)
    asked = parts.job
    ids = asked.cohort.draw(len(parts.datasets), asked.seed, 0)
    found = compare_ways(
        parts.model,
        [parts.datasets[i] for i in ids],
        asked.recipe,
        ways=ways,
        workers=request.workers,
        chunk=request.chunk,
        devices=request.devices,
        test=parts.test,
        repeats=request.repeats,
        seed=asked.seed,
    )
    said = advice(found, n_clients=len(ids), batch_size=asked.recipe.batch_size)
    if request.as_json:
        click.echo(json.dumps({"schema": 1, "ways": [asdict(way) for way in found], "advice": said}))
    else:
        click.echo("\n".join([*_table(found), "", *said]))
    return 0


def _table(found: list[Any]) -> list[str]:
    serial_s = found[0].seconds
    head = ["way", "ran", "round, s", "first, s", "times serial", "accuracy", "distance", "failed", "why"]
    rows = [
        [
            way.way,
            way.ran,
            _cell(way.seconds, ".4f"),
            _cell(way.first_s, ".4f"),
            _cell(serial_s / way.seconds if way.seconds else None, ".2f"),
            _cell(way.accuracy, ".4f"),
            _cell(way.distance, ".1e"),
            str(way.n_failed or ""),
            way.why,
        ]
        for way in found
    ]
    return format_table(head, rows, right=head[2:8])


def _cell(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


clients.add_command(compare)
clients.add_command(run)


@click.command()
@click.argument("job", type=PATH)
@click.option("--rounds", type=click.IntRange(1), help="That are to come; wins over the job file.")
@click.option("--batch-size", type=click.IntRange(1), help="Rows of a client's step; wins over the file.")
@json_option
def tune(job: Path, rounds: int | None, batch_size: int | None, as_json: bool) -> int:
    """Measure which strategy is fastest for the clients of JOB, and print the table."""
    parts = load_job(job, batch_size)
    from evenload.clients import Trainer

    asked = parts.job
    ids = asked.cohort.draw(len(parts.datasets), asked.seed, 0)
    datasets = [parts.datasets[i] for i in ids]
    with Trainer(parts.model, strategy="measured", seed=asked.seed, rounds=rounds or asked.rounds) as trainer:
        found = trainer.train(datasets, asked.recipe, ids=ids, reduce=_NoState(), on_error="return")
    plan = found.plan
    if not as_json:
        click.echo(plan.explain())
        return 0
    probes = [dict(probe) for probe in plan.probes]
    page = {"schema": 1, "strategy": str(plan.strategy), "why": plan.why, "probes": probes}
    click.echo(json.dumps({**page, "reasons": dict(plan.reasons)}))
    return 0


class _NoState:
    """A reducer that keeps no state: only the plan is wanted."""

    def take(self, results: Any) -> Any:
        return results

    def value(self) -> None:
        return None


clients.add_command(tune)
