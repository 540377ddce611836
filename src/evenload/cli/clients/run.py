"""``evenload clients run fl.yaml``: federated rounds of a job file."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evenload.cli.clients.job_parts import JobParts, load_job
from evenload.cli.monitoring.monitoring import Monitors, monitor_options, recorded
from evenload.cli.monitoring.step_events import Steps
from evenload.cli.options import FOLDER, PATH, json_option, passed_as
from evenload.cli.terminal.table import format_table
from evenload.errors import ConfigError
from evenload.events import json_text

if TYPE_CHECKING:
    from evenload.clients import FederatedResult


@dataclass(frozen=True, slots=True)
class TrainRequest:
    """The options of ``evenload clients run``."""

    job: Path
    strategy: str | None
    workers: int | None
    batch_size: int | None
    rounds: int | None
    devices: str
    checkpoint: Path | None
    resume: bool
    out: Path | None
    folder: Path | None
    as_json: bool
    quiet: bool


@click.command()
@click.argument("job", type=PATH)
@click.option(
    "--strategy",
    help="auto, serial, fused:16, threads*2/rules:10, streams*4/fused, ray/eager, ...; wins over the file.",
)
@click.option(
    "--workers",
    "--max-workers",
    "workers",
    type=click.IntRange(1),
    help="Most threads, processes or streams of the strategy.",
)
@click.option("--batch-size", type=click.IntRange(1), help="Rows of a client's step; wins over the file.")
@click.option("--rounds", type=click.IntRange(1), help="Wins over the job file.")
@click.option("--devices", default="all", show_default=True, help="What a strategy devices/... runs on.")
@click.option("--checkpoint", type=PATH, help="Written after every round.")
@click.option("--resume", is_flag=True, help="Begin after the last round of the checkpoint.")
@click.option("-o", "--out", type=PATH, help="Write the global model here (torch.save).")
@click.option(
    "--run",
    "folder",
    metavar="FOLDER",
    type=FOLDER,
    help="A folder for the run: its events, and a report with the loss curves.",
)
@json_option
@click.option("-q", "--quiet", is_flag=True, help="No line per round on stderr.")
@monitor_options
@passed_as(TrainRequest)
def run(request: TrainRequest, monitors: Monitors) -> int:
    """Train the global model that the file JOB describes.

    Clients that fail or diverge are left out of their rounds and listed; the exit code is then 1.
    """
    if request.resume and request.checkpoint is None:
        raise click.UsageError("--resume goes on from a checkpoint: name it with --checkpoint")
    parts = load_job(request.job, request.batch_size)
    strategy = _strategy(request.strategy or parts.job.strategy, request.workers)
    if request.folder is not None:
        _make_folder(request.folder, is_resumed=request.resume)
    result = _train(request, parts, strategy, monitors)
    if request.out is not None:
        import torch

        torch.save(result.state, request.out)
    if request.folder is not None:
        from evenload.report.html import write_report

        write_report(request.folder)
        click.echo(f"report: {request.folder / 'report.html'}", err=True)

    report = TrainingReport(result, parts)
    report.print(request.as_json)
    return 1 if report.failed else 0


def _strategy(text: str, workers: int | None) -> str:
    """The strategy ``text`` on at most so many workers. Raises ConfigError if these are not its to choose."""
    if workers is None:
        return text
    if text in ("auto", "measured"):
        raise ConfigError(
            f"--max-workers {workers} with the strategy {text}, which finds the number of workers itself",
            hint=f"name a strategy, too: --strategy threads --max-workers {workers}",
        )
    from evenload.clients.values.strategy import Strategy

    return str(Strategy.parse(text).on_at_most(workers))


def _train(request: TrainRequest, parts: JobParts, strategy: str, monitors: Monitors) -> "FederatedResult":
    """Run the rounds; each is recorded as an event, and printed on stderr unless that is not wanted."""
    from evenload.clients import federate

    asked = parts.job
    n_rounds = request.rounds or asked.rounds
    with (
        recorded(str(request.job), monitors, folder=request.folder) as log,
        Steps(log, request.job.stem, "round", n_rounds, "all clients") as steps,
    ):
        return federate(
            parts.model,
            parts.datasets,
            asked.recipe,
            asked.algorithm,
            rounds=n_rounds,
            cohort=asked.cohort,
            test=parts.test,
            strategy=strategy,
            devices=request.devices,
            seed=asked.seed,
            checkpoint=request.checkpoint,
            resume=request.resume,
            on_round=_on_round(steps, request.quiet),
        )


def _on_round(steps: Steps, quiet: bool) -> Callable[[Any], None]:
    def tell(done: Any) -> None:
        measured = {"loss": done.loss, **{f"test {name}": value for name, value in done.test.items()}}
        steps.done(done.round, f"round {done.round + 1}", measured)
        if not quiet:
            scores = "".join(f", test {name} {value:.4f}" for name, value in done.test.items())
            click.echo(f"round {done.round + 1}: loss {done.loss:.4f}{scores}", err=True)

    return tell


def _make_folder(folder: Path, *, is_resumed: bool) -> None:
    """Make the run folder. Raises ConfigError if it holds another run that this one does not go on with."""
    if (folder / "events.jsonl").exists() and not is_resumed:
        raise ConfigError(f"{folder} holds another run", hint="name a new folder, or go on with --resume")
    folder.mkdir(parents=True, exist_ok=True)


MOST_FAILED = 5  # that are listed


class TrainingReport:
    """The end of a training: its rounds, the clients that failed by round, and the privacy that it spent."""

    def __init__(self, result: "FederatedResult", parts: JobParts):
        self._result = result
        self.failed = {
            f"round {one.round + 1}, client {client}": why
            for one in result.history
            for client, why in one.failed.items()
        }
        self._privacy = _privacy(parts.job, len(parts.datasets), len(result.history))

    def print(self, as_json: bool) -> None:
        """Print a table, or one JSON object; and the failures on stderr."""
        click.echo(json_text(self._page()) if as_json else "\n".join(self._lines()))
        for where, why in list(self.failed.items())[:MOST_FAILED]:
            click.echo(f"{where} failed: {why}", err=True)
        if len(self.failed) > MOST_FAILED:
            click.echo(f"and {len(self.failed) - MOST_FAILED} more", err=True)

    def _page(self) -> dict[str, Any]:
        history, plan = self._result.history, self._result.plan
        rounds = [
            {
                "round": one.round,
                "cohort": len(one.cohort),
                "returned": len(one.returned),
                "loss": one.loss,
                **one.test,
            }
            for one in history
        ]
        return {
            "schema": 1,
            "rounds": rounds,
            "strategy": str(plan.strategy) if plan else None,
            "lost": sum(len(one.cohort) - len(one.returned) - len(one.failed) for one in history),
            "failed": self.failed,
            **self._privacy,
        }

    def _lines(self) -> list[str]:
        history, plan = self._result.history, self._result.plan
        rows = [
            [
                str(one.round + 1),
                str(len(one.returned)),
                f"{one.loss:.4f}",
                *(f"{value:.4f}" for value in one.test.values()),
            ]
            for one in history
        ]
        head = ["round", "clients", "loss", *(f"test {name}" for name in history[-1].test)]
        lines = format_table(head, rows, right=head[:3])
        if plan is not None:
            lines.append(plan.explain())
        if self._privacy:
            epsilon, delta = self._privacy["epsilon"], self._privacy["delta"]
            lines.append(f"privacy: epsilon {epsilon:.3g} at delta {delta:.2g}, per client")
        return lines


def _privacy(asked: Any, n_clients: int, n_rounds: int) -> dict[str, float]:
    """What a private run has spent, if its cohorts allow to compute it; delta is 1 / clients^1.1."""
    from evenload._optional import is_installed
    from evenload.clients.algorithms import PrivateFedAvg

    is_private = isinstance(asked.algorithm, PrivateFedAvg)
    is_known = is_private and asked.cohort.poisson and asked.algorithm.expected is not None
    if not is_known or not is_installed("dp_accounting"):
        return {}
    from evenload.clients.accountant import spent_epsilon

    delta = n_clients**-1.1 if n_clients > 1 else 0.5
    return {
        "epsilon": spent_epsilon(asked.algorithm.noise, asked.cohort.size, n_rounds, delta),
        "delta": delta,
    }
