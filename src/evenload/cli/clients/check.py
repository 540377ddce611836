"""``evenload clients check fl.yaml``: a few steps of a job's clients, held against a plain loop of torch."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from evenload.cli.clients.job_parts import load_job
from evenload.cli.options import PATH, json_option, passed_as

__all__ = ["check"]


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
    from evenload.clients.plain_check import check_plainly

    job = parts.job
    strategy = request.strategy or job.strategy
    found = check_plainly(parts.model, parts.datasets, job.recipe, strategy=strategy, seed=job.seed)
    if request.as_json:
        clients = [{**asdict(one), "is_equal": one.is_equal} for one in found]
        click.echo(json.dumps({"schema": 1, "clients": clients}))
    else:
        click.echo("\n".join(map(str, found)))
    return 0 if all(one.is_equal for one in found) else 1
