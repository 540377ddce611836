"""``evenload clients tune fl.yaml``: which strategy is fastest for the clients of a job."""

import json
from pathlib import Path
from typing import Any

import click

from evenload.cli.clients.job_parts import load_job
from evenload.cli.options import PATH, json_option

__all__ = ["tune"]


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
