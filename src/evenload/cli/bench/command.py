"""``evenload bench``: measure this machine on real work, beside what theory predicts."""

import datetime
import importlib
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from evenload._optional import is_installed
from evenload._private_files import write_named
from evenload._terminal import end_with_reader
from evenload.cli.bench.measure.trial_report import BenchOptions, TrialReport
from evenload.cli.bench.selections import merkle_bench, prove_bench, table_of
from evenload.cli.monitoring.monitoring import Monitors, recorded
from evenload.cli.monitoring.step_events import Steps
from evenload.cli.options import FILE, json_option, option, page_json, passed_as, shared
from evenload.errors import EvenloadError, UnknownName


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRequest:
    """The options of ``evenload bench``."""

    quick: bool = option("--quick", is_flag=True, help="Small sizes: a minute on two cores.")
    names: tuple[str, ...] = option(
        "--only", multiple=True, metavar="TRIAL", help="Only this trial; may be repeated."
    )
    specs: tuple[str, ...] = option(
        "--devices", multiple=True, help="A selection to measure; repeat it. Default: 1 to all."
    )
    peers: bool = option(
        "--peers/--no-peers", default=True, help="Measure other libraries that are installed as well."
    )
    html: Path | None = option("--html", type=FILE, help="Write a page with the results.")
    output: Path | None = option("-o", "--output", type=FILE, help="Write the JSON here.")
    as_json: bool = shared(json_option)
    has_dash: bool = option("--dash", is_flag=True, help="Show its progress in the browser.")


@click.group(invoke_without_command=True)
@click.pass_context
@passed_as(BenchRequest)
def bench(context: click.Context, request: BenchRequest) -> int | None:
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
    for name in request.names:
        if name not in TRIALS:
            raise UnknownName("trial", name, TRIALS)
    for spec in request.specs:
        from evenload.devices import DevicePool

        DevicePool.find(spec)  # refuses what is no device here, which a trial might not ask for
    end_with_reader()
    page = _measure(request)
    if request.output:
        write_named(request.output, page_json(page, indent=1, default=float) + "\n")
    if request.html:
        from evenload.report.html import write_bench

        write_bench(page, request.html)
        click.echo(request.html, err=request.as_json)
    if request.as_json:
        click.echo(page_json(page, default=float))
    return 1 if any(trial["skipped"].startswith("failed") for trial in page["trials"]) else 0


def _measure(request: BenchRequest) -> dict[str, Any]:
    """The JSON page of the trials that are asked for; without ``--json`` each is printed when it is done."""
    specs, machine = request.specs or device_specs(), machine_facts()
    options = BenchOptions(specs, max(1, min(8, machine["cores"] or 1)), request.quick, request.peers)
    page: dict[str, Any] = {"schema": 1, "quick": request.quick, "machine": machine, "trials": []}
    names = request.names or tuple(TRIALS)
    with (
        recorded("bench", Monitors(request.has_dash)) as log,
        Steps(log, "bench", "trial", len(names), "this machine") as steps,
    ):
        for number, name in enumerate(names):
            trial = _run(name, options)
            page["trials"].append(trial.to_json())
            if not request.as_json:
                click.echo("\n".join(_lines(trial)) + "\n")
            steps.done(number, name, {"took_s": trial.took_s})
    return page


def _run(name: str, options: BenchOptions) -> TrialReport:
    """Run one trial, or say why it cannot run. One that fails does not keep the others from running."""
    where, title, modules, extra = TRIALS[name]
    missing = [module for module in modules if not is_installed(module)]
    if missing:
        hint = f"pip install 'evenload[{extra}]'"
        return TrialReport(name, title, skipped=f"{', '.join(missing)} not installed", hint=hint)
    module, _, function = where.partition(":")
    began = time.perf_counter()
    try:
        made = getattr(importlib.import_module(f"evenload.cli.bench.measure.{module}"), function)(options)
    except EvenloadError as error:
        return TrialReport(name, title, skipped=f"failed: {error.message}", hint=error.hint or "")
    except Exception as error:
        return TrialReport(name, title, skipped=f"failed: {type(error).__name__}: {error}")
    took_s = time.perf_counter() - began
    return TrialReport(name, title, made.rows, made.note, missing=made.missing, took_s=took_s)


def _lines(trial: TrialReport) -> Sequence[str]:
    lines = [f"{trial.name}: {trial.title}" + (f"  ({trial.took_s:.1f} s)" if trial.rows else "")]
    if not trial.rows:
        return [*lines, f"  left out: {trial.skipped}", *([f"  hint: {trial.hint}"] if trial.hint else [])]
    return [*lines, *(f"  {line}" for line in [*table_of(trial.rows, 4), *trial.missing])]


bench.add_command(merkle_bench)
bench.add_command(prove_bench)


# name -> (module:function in ``measure``, title, modules that it needs, the extra that brings them)
TRIALS: dict[str, tuple[str, str, tuple[str, ...], str]] = {
    "executor": ("trials:overhead", "What an executor costs per task that does nothing", (), ""),
    "transport": ("trials:transport", "Arrays to workers and back", (), ""),
    "scaling": ("trials:scaling", "The same work on one device and on more", (), ""),
    "unequal": ("trials:unequal", "Scheduling on unequal devices (simulated: speeds 1 : 2 : 4 : 8)", (), ""),
    "merkle": ("merkle:merkle", "Merkle tree", ("llvmlite", "evenload.merkle"), "zk"),
    "prove": ("prove:prove", "Groth16 proofs", ("llvmlite", "numba", "evenload.zk"), "zk"),
    "experts": ("experts:experts", "Expert placement and routing", ("numba", "torch", "evenload.moe"), "moe"),
    "clients": ("trials:clients", "Many small trainings, fused", ("torch", "evenload.clients"), "clients"),
    "pipeline": ("trials:pipeline", "A pipeline of two stages", ("pydantic", "yaml"), "jobs"),
}


PACKAGES = ("evenload", "numpy", "numba", "llvmlite", "torch", "loky", "joblib")


def machine_facts() -> dict[str, Any]:
    from evenload.devices import DevicePool
    from evenload.devices.probes.cpu import cpu_name

    with DevicePool.discover() as pool:
        devices = [f"{device.id}: {device.name}" for device in pool]
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "devices": devices,
        "versions": package_versions(*PACKAGES),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def device_specs() -> tuple[str, ...]:
    """Selections from one device to all: of the GPUs if there are some that compute, else of CPU slots."""
    from evenload.devices import DevicePool

    with DevicePool.discover() as pool:
        gpus = [
            device.id for device in pool if device.family in ("cuda", "rocm", "xpu") and not device.same_as
        ]
    if gpus:
        sizes = sorted({1, 2, 4, 8, 16, len(gpus)} & set(range(1, len(gpus) + 1)))
        return tuple(",".join(gpus[:n]) for n in sizes)
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    sizes = sorted({1, 2, 4, 8, 16, 32, 64, n_cores} & set(range(1, n_cores + 1)))
    return tuple(f"cpu*{n}" for n in sizes)


def package_versions(*packages: str) -> dict[str, str]:
    """Versions of Python and of those ``packages`` that are installed."""
    versions = {"python": platform.python_version()}
    for name in packages:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
