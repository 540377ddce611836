"""``evenload clients run fl.yaml``: federated rounds; ``check`` them; ``tune`` and ``compare`` strategies."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evenload.cli.monitoring.monitoring import Monitors, monitor_options, recorded
from evenload.cli.monitoring.step_events import Steps
from evenload.cli.options import FOLDER, PATH, argument, json_option, option, page_json, passed_as, shared
from evenload.cli.terminal.table import format_table
from evenload.errors import ConfigError, UnknownName, quoted

if TYPE_CHECKING:
    from evenload.clients import FederatedResult


@dataclass(frozen=True, slots=True)
class JobParts:
    """A job file of clients with everything that it names loaded.

    job       the file's values
    model     makes the model
    datasets  a client's examples each
    test      examples to test the global model with, if there are some
    """

    job: Any
    model: Any
    datasets: Any
    test: Any


def load_job(path: Path, batch_size: int | None = None) -> JobParts:
    """Read the job file and load what it names; ``batch_size`` wins. Raises SpecError, ConfigError."""
    from evenload._private_files import text_named
    from evenload.clients.job import read_job
    from evenload.errors import SpecError
    from evenload.pipeline.job.job_file import MOST_BYTES
    from evenload.pipeline.job.yaml_text import parse_yaml
    from evenload.pipeline.target import load_target, locate_target

    text = text_named(path, MOST_BYTES, "name a job file (YAML): evenload clients run fl.yaml")
    document, _, faults = parse_yaml(text, str(path))
    if faults:
        raise SpecError(str(path), [(".".join(map(str, place)), message) for place, message in faults])
    job = read_job(document, str(path))
    if batch_size is not None:
        job = replace(job, recipe=replace(job.recipe, batch_size=batch_size))
    made: list[Any] = [
        load_target(locate_target(name, path.parent)) if name else None
        for name in (job.model, job.clients, job.test)
    ]
    return JobParts(job, made[0], made[1](), made[2]() if made[2] else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """The options of ``evenload clients run``."""

    job: Path = argument(type=PATH)
    strategy: str | None = option(
        "--strategy",
        help="auto, serial, fused:16, threads*2/rules:10, streams*4/fused, ray/eager, ...; wins over the"
        " file.",
    )
    workers: int | None = option(
        "--workers",
        "--max-workers",
        type=click.IntRange(1),
        help="Most threads, processes or streams of the strategy.",
    )
    batch_size: int | None = option(
        "--batch-size", type=click.IntRange(1), help="Rows of a client's step; wins over the file."
    )
    rounds: int | None = option("--rounds", type=click.IntRange(1), help="Wins over the job file.")
    devices: str = option(
        "--devices", default="all", show_default=True, help="What a strategy devices/... runs on."
    )
    checkpoint: Path | None = option("--checkpoint", type=PATH, help="Written after every round.")
    resume: bool = option("--resume", is_flag=True, help="Begin after the last round of the checkpoint.")
    out: Path | None = option("-o", "--out", type=PATH, help="Write the global model here (torch.save).")
    folder: Path | None = option(
        "--run",
        metavar="FOLDER",
        type=FOLDER,
        help="A folder for the run: its events, and a report with the loss curves.",
    )
    as_json: bool = shared(json_option)
    quiet: bool = option("-q", "--quiet", is_flag=True, help="No line per round on stderr.")


@click.command()
@monitor_options
@passed_as(TrainRequest)
def run(request: TrainRequest, monitors: Monitors) -> int:
    """Train the global model that the file JOB describes.

    Clients that fail or diverge are left out of their rounds and listed; the exit code is then 1.
    """
    if request.resume and request.checkpoint is None:
        raise click.UsageError("--resume goes on from a checkpoint: name it with --checkpoint")
    if request.out is not None and not request.out.absolute().parent.is_dir():  # before hours of training
        raise ConfigError(
            f"{quoted(str(request.out))} cannot be written: it has no folder", hint="make the folder first"
        )
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
        click.echo(page_json(self._page()) if as_json else "\n".join(self._lines()))
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


@click.group()
def clients() -> None:
    """Train many small models at once: federated rounds of a job file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRequest:
    """The options of ``evenload clients check``."""

    job: Path = argument(type=PATH)
    strategy: str | None = option(
        "--strategy", help="How clients are trained, as in the file, which it wins over."
    )
    as_json: bool = shared(json_option)


@click.command()
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
        click.echo(page_json({"schema": 1, "clients": clients}))
    else:
        click.echo("\n".join(map(str, found)))
    return 0 if all(one.is_equal for one in found) else 1


clients.add_command(check)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRequest:
    """The options of ``evenload clients compare``."""

    job: Path = argument(type=PATH)
    ways: str | None = option(
        "--ways", help="Of serial,threads,processes,merged,fused,streams,devices; all by default."
    )
    workers: int | None = option(
        "--workers", "--max-workers", type=click.IntRange(1), help="Threads, processes or streams."
    )
    chunk: int | None = option(
        "--chunk", type=click.IntRange(1), help="Clients in a fused step; all of them by default."
    )
    batch_size: int | None = option(
        "--batch-size", type=click.IntRange(1), help="Rows of a client's step; wins over the file."
    )
    devices: str = option(
        "--devices", default="all", show_default=True, help="What devices and streams run on."
    )
    repeats: int = option(
        "--repeats", type=click.IntRange(1), default=3, show_default=True, help="Warm rounds of each."
    )
    as_json: bool = shared(json_option)


@click.command()
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
        click.echo(page_json({"schema": 1, "ways": [asdict(way) for way in found], "advice": said}))
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
    click.echo(page_json({**page, "reasons": dict(plan.reasons)}))
    return 0


class _NoState:
    """A reducer that keeps no state: only the plan is wanted."""

    def take(self, results: Any) -> Any:
        return results

    def value(self) -> None:
        return None


clients.add_command(tune)
