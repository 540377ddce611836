"""``evenload clients compare fl.yaml``: every way of training the clients of a job, beside the others."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from evenload.cli.clients.job_parts import load_job
from evenload.cli.options import PATH, json_option, passed_as
from evenload.cli.terminal.table import format_table
from evenload.errors import UnknownName

__all__ = ["compare"]


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
