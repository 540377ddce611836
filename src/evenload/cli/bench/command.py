"""``evenload bench``: measure this machine on real work, beside what theory predicts."""

import importlib
import json
import time
from pathlib import Path
from typing import Any

import click

from evenload._optional import is_installed
from evenload.cli.bench.measure import TRIALS, Setting, Trial
from evenload.cli.bench.merkle import merkle_bench
from evenload.cli.bench.prove import prove_bench
from evenload.cli.monitoring.monitoring import recorded
from evenload.cli.monitoring.step_events import Steps
from evenload.cli.terminal.table import format_table
from evenload.errors import EvenloadError, UnknownName

__all__ = ["bench"]

HEADS = {
    "work_s": "work s",
    "in_all_s": "in all s",
    "speed_up": "speed-up",
    "utilisation_std": "util. ±",
    "x_bound": "x bound",
    "items_per_s": "items/s",
    "per_s": "per s",
}


@click.group(invoke_without_command=True)
@click.option("--quick", is_flag=True, help="Small sizes: a minute on two cores.")
@click.option("--only", "names", multiple=True, metavar="TRIAL", help="Only this trial; may be repeated.")
@click.option(
    "--devices", "specs", multiple=True, help="A selection to measure; repeat it. Default: 1 to all."
)
@click.option("--peers/--no-peers", default=True, help="Measure other libraries that are installed as well.")
@click.option(
    "--html", type=click.Path(path_type=Path, dir_okay=False), help="Write a page with the results."
)
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write the JSON here.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--dash", "has_dash", is_flag=True, help="Show its progress in the browser.")
@click.pass_context
def bench(
    context: click.Context,
    quick: bool,
    names: tuple[str, ...],
    specs: tuple[str, ...],
    peers: bool,
    html: Path | None,
    output: Path | None,
    as_json: bool,
    has_dash: bool,
) -> int | None:
    """Measure this machine: executor, transport, scheduling, Merkle trees, proofs, experts, clients, ...

    Each on one device and on more, with speed-up, efficiency, spread of utilisation, the bound and Amdahl's
    prediction, and beside the other libraries that are installed. What is not installed is left out, and its
    install line is printed. A busy machine measures itself badly: the load is part of the result.

    \b
    evenload bench --quick
    evenload bench --only merkle --only prove --html bench.html
    """
    if context.invoked_subcommand is not None:
        return None
    for name in names:
        if name not in TRIALS:
            raise UnknownName("trial", name, TRIALS)
    from evenload.cli.bench.measure.machine import device_specs, machine_facts

    chosen = specs or device_specs()
    facts = machine_facts()
    setting = Setting(chosen, max(1, min(8, facts["cores"] or 1)), quick, peers)
    page: dict[str, Any] = {"schema": 1, "quick": quick, "machine": facts, "trials": []}
    n_failed = 0
    todo = list(names or TRIALS)
    with recorded("bench", has_dash) as log, Steps(log, "bench", "trial", len(todo), "this machine") as steps:
        for number, name in enumerate(todo):
            trial = _run(name, setting)
            n_failed += trial.skipped.startswith("failed")
            page["trials"].append(trial.to_json())
            if not as_json:
                click.echo("\n".join(_lines(trial)) + "\n")
            steps.done(number, name, {"took_s": trial.took_s})
    if output:
        output.write_text(json.dumps(page, indent=1, default=float) + "\n", encoding="utf-8")
    if html:
        from evenload.report.html import write_bench

        write_bench(page, html)
        click.echo(html, err=as_json)
    if as_json:
        click.echo(json.dumps(page, default=float))
    return 1 if n_failed else 0


def _run(name: str, setting: Setting) -> Trial:
    """One trial; why not, where that cannot be. A trial that fails does not keep the others from running."""
    where, title, modules, extra = TRIALS[name]
    missing = [module for module in modules if not is_installed(module)]
    if missing:
        hint = f"pip install 'evenload[{extra}]'"
        return Trial(name, title, skipped=f"{', '.join(missing)} not installed", hint=hint)
    module, _, function = where.partition(":")
    began = time.perf_counter()
    try:
        made = getattr(importlib.import_module(f"evenload.cli.bench.measure.{module}"), function)(setting)
    except EvenloadError as error:
        return Trial(name, title, skipped=f"failed: {error.message}", hint=error.hint or "")
    except Exception as error:
        return Trial(name, title, skipped=f"failed: {type(error).__name__}: {error}")
    return Trial(name, title, made.rows, made.note, missing=made.missing, took_s=time.perf_counter() - began)


def _lines(trial: Trial) -> list[str]:
    lines = [f"{trial.name}: {trial.title}" + (f"  ({trial.took_s:.1f} s)" if trial.rows else "")]
    if not trial.rows:
        return [*lines, f"  left out: {trial.skipped}", *([f"  hint: {trial.hint}"] if trial.hint else [])]
    keys = list(trial.rows[0])
    head = [HEADS.get(key, key.replace("_", " ")) for key in keys]
    cells = [[_cell(row.get(key)) for key in keys] for row in trial.rows]
    # Numbers to the right: titles have spaces, so the padding is done here.
    for c in range(1, len(keys)):
        width = max(len(head[c]), *(len(row[c]) for row in cells))
        head[c] = head[c].rjust(width)
        for row in cells:
            row[c] = row[c].rjust(width)
    table = format_table(head, cells)
    return [*lines, *(f"  {line}" for line in table), *(f"  {text}" for text in trial.missing)]


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return value if isinstance(value, str) else str(value) if isinstance(value, int) else f"{value:.4g}"


bench.add_command(merkle_bench)
bench.add_command(prove_bench)
