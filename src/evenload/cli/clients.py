"""``evenload clients run fl.yaml``: federated rounds; ``... tune fl.yaml``: which strategy is fastest."""

import json
from pathlib import Path
from typing import Any

import click

from evenload.cli.monitoring.monitoring import recorded, reporting, watch_options
from evenload.cli.monitoring.step_events import Steps
from evenload.cli.terminal.table import format_table

__all__ = ["clients"]

MOST_FAILED = 5  # that are listed


@click.group()
def clients() -> None:
    """Train many small models at once: federated rounds of a job file."""


@clients.command()
@click.argument("job", type=click.Path(path_type=Path))
@click.option(
    "--strategy",
    help="auto, serial, fused:16, threads*2/rules:10, streams*4/fused, ray/eager, ...; wins over the file.",
)
@click.option("--rounds", type=click.IntRange(1), help="Wins over the job file.")
@click.option("--devices", default="all", show_default=True, help="What a strategy devices/... runs on.")
@click.option("--checkpoint", type=click.Path(path_type=Path), help="Written after every round.")
@click.option("--resume", is_flag=True, help="Begin after the last round of the checkpoint.")
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), help="Write the global model here (torch.save)."
)
@click.option(
    "--run",
    "folder",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    help="A folder for the run: its events, and a report with the loss curves.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="No line per round on stderr.")
@watch_options
def run(
    job: Path,
    strategy: str | None,
    rounds: int | None,
    devices: str,
    checkpoint: Path | None,
    resume: bool,
    out: Path | None,
    folder: Path | None,
    as_json: bool,
    quiet: bool,
    has_dash: bool,
    metrics_port: str | None,
    has_otel: bool,
) -> int:
    """Train the global model that the file JOB describes.

    Clients that fail or diverge are left out of their rounds and listed; the exit code is then 1.
    """
    if resume and checkpoint is None:
        raise click.UsageError("--resume goes on from a checkpoint: name it with --checkpoint")
    from evenload.events import json_text

    asked, model, datasets, test = _load(job)
    from evenload.clients import federate

    def tell(done: Any) -> None:
        measured = {"loss": done.loss, **{f"test {name}": value for name, value in done.test.items()}}
        steps.done(done.round, f"round {done.round + 1}", measured)
        if not quiet:
            click.echo(f"round {done.round + 1}: loss {done.loss:.4f}{_scores(done.test)}", err=True)

    n_rounds = rounds or asked.rounds
    if folder is not None:
        _make_folder(folder, is_resumed=resume)
    with (
        reporting(metrics_port, has_otel) as sinks,
        recorded(str(job), has_dash, *sinks, folder=folder) as log,
        Steps(log, job.stem, "round", n_rounds, "all clients") as steps,
    ):
        result = federate(
            model,
            datasets,
            asked.recipe,
            asked.algorithm,
            rounds=n_rounds,
            cohort=asked.cohort,
            test=test,
            strategy=strategy or asked.strategy,
            devices=devices,
            seed=asked.seed,
            checkpoint=checkpoint,
            resume=resume,
            on_round=tell,
        )
    if out is not None:
        import torch

        torch.save(result.state, out)
    if folder is not None:
        from evenload.report.html import write_report

        write_report(folder)
        click.echo(f"report: {folder / 'report.html'}", err=True)
    failed = {f"round {r.round + 1}, client {c}": why for r in result.history for c, why in r.failed.items()}
    lost = sum(len(r.cohort) - len(r.returned) - len(r.failed) for r in result.history)
    privacy = _privacy(asked, len(datasets), len(result.history))
    if as_json:
        page = {
            "schema": 1,
            "rounds": [
                {
                    "round": r.round,
                    "cohort": len(r.cohort),
                    "returned": len(r.returned),
                    "loss": r.loss,
                    **r.test,
                }
                for r in result.history
            ],
            "strategy": str(result.plan.strategy) if result.plan else None,
            "lost": lost,
            "failed": failed,
            **privacy,
        }
        click.echo(json_text(page))
    else:
        rows = [
            [str(r.round + 1), str(len(r.returned)), f"{r.loss:.4f}", *(f"{v:.4f}" for v in r.test.values())]
            for r in result.history
        ]
        head = ["round", "clients", "loss", *(f"test {name}" for name in result.history[-1].test)]
        click.echo("\n".join(format_table(head, rows, right="round clients loss")))
        if result.plan is not None:
            click.echo(result.plan.explain())
        if privacy:
            click.echo(
                f"privacy: epsilon {privacy['epsilon']:.3g} at delta {privacy['delta']:.2g}, per client"
            )
    for where, why in list(failed.items())[:MOST_FAILED]:
        click.echo(f"{where} failed: {why}", err=True)
    if len(failed) > MOST_FAILED:
        click.echo(f"and {len(failed) - MOST_FAILED} more", err=True)
    return 1 if failed else 0


@clients.command()
@click.argument("job", type=click.Path(path_type=Path))
@click.option("--rounds", type=click.IntRange(1), help="That are to come; wins over the job file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def tune(job: Path, rounds: int | None, as_json: bool) -> int:
    """Measure which strategy is fastest for the clients of JOB, and print the table."""
    asked, model, datasets, _ = _load(job)
    from evenload.clients import Trainer

    n_rounds = rounds or asked.rounds
    ids = asked.cohort.draw(len(datasets), asked.seed, 0)
    with Trainer(model, seed=asked.seed, rounds=n_rounds) as trainer:
        found = trainer.train(
            [datasets[i] for i in ids], asked.recipe, ids=ids, reduce=_Nothing(), on_error="return"
        )
    if as_json:
        plan = found.plan
        page = {
            "schema": 1,
            "strategy": str(plan.strategy),
            "why": plan.why,
            "probes": [dict(p) for p in plan.probes],
        }
        click.echo(json.dumps({**page, "reasons": dict(plan.reasons)}))
    else:
        click.echo(found.plan.explain())
    return 0


def _make_folder(folder: Path, *, is_resumed: bool) -> None:
    """Raises ConfigError if another run's events are in it, and this one does not go on with that."""
    from evenload.errors import ConfigError

    if (folder / "events.jsonl").exists() and not is_resumed:
        raise ConfigError(f"{folder} holds another run", hint="name a new folder, or go on with --resume")
    folder.mkdir(parents=True, exist_ok=True)


def _privacy(asked: Any, n_clients: int, rounds: int) -> dict[str, float]:
    """What a private run has spent, if its cohorts are such that it can be told; delta is 1 / clients^1.1."""
    from evenload._optional import is_installed
    from evenload.clients.algorithms import PrivateFedAvg

    is_private = isinstance(asked.algorithm, PrivateFedAvg)
    is_known = is_private and asked.cohort.poisson and asked.algorithm.expected is not None
    if not is_known or not is_installed("dp_accounting"):
        return {}
    from evenload.clients.accountant import spent_epsilon

    delta = n_clients**-1.1 if n_clients > 1 else 0.5
    return {
        "epsilon": spent_epsilon(asked.algorithm.noise, asked.cohort.size, rounds, delta),
        "delta": delta,
    }


class _Nothing:
    """A reducer that keeps no state: only the plan is wanted."""

    def take(self, results: Any) -> Any:
        return results

    def value(self) -> None:
        return None


def _load(path: Path) -> tuple[Any, Any, Any, Any]:
    """The job, its model's factory, its clients and its test examples. Raises SpecError, ConfigError."""
    from evenload.clients.job import read_job
    from evenload.errors import ConfigError
    from evenload.pipeline.job.yaml_text import parse_yaml
    from evenload.pipeline.target import load_target, locate_target

    if not path.is_file():
        raise ConfigError(f"there is no file {path}", hint="name a job file: evenload clients run fl.yaml")
    document, _, faults = parse_yaml(path.read_text(encoding="utf-8"), str(path))
    if faults:
        from evenload.errors import SpecError

        raise SpecError(str(path), [(".".join(map(str, place)), message) for place, message in faults])
    job = read_job(document, str(path))
    made: list[Any] = [
        load_target(locate_target(name, path.parent)) if name else None
        for name in (job.model, job.clients, job.test)
    ]
    return job, made[0], made[1](), made[2]() if made[2] else None


def _scores(test: Any) -> str:
    return "".join(f", test {name} {value:.4f}" for name, value in test.items())
