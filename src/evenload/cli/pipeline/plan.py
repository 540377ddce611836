"""``evenload plan job.yaml``: where each model would be, when, and how long it would take. Starts nothing."""

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from evenload._optional import require
from evenload._plain_text import number_text, seconds_text
from evenload.cli.options import (
    FILE,
    PATH,
    argument,
    json_option,
    option,
    page_json,
    passed_as,
    planning_limit_option,
    set_option,
    shared,
    write_certificate,
)
from evenload.errors import ConfigError

if TYPE_CHECKING:
    from evenload.pipeline.job.spec import JobSpec
    from evenload.pipeline.planning.modelled_fleet import FleetDevice
    from evenload.pipeline.planning.planner import SearchState


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """The options of ``evenload plan``."""

    job: Path = argument(type=PATH)
    devices: str | None = option(
        "--devices", help="Those of this machine (all, cuda:0,1), or any: 6x24GB:h100 (free memory each)."
    )
    backend: str | None = option(
        "--backend",
        type=click.Choice(["process", "ray"]),
        help="ray: plan for the devices of a Ray cluster; wins over the job file.",
    )
    mode: str | None = option(
        "--mode", help="auto | single | data_parallel | model_parallel | stage_parallel | swap."
    )
    items: int | None = option(
        "--items", type=click.IntRange(1), help="Plan for so many items; the job's inputs need not be there."
    )
    measured: Path | None = option(
        "--measured", type=PATH, metavar="RUN", help="Take times from the run in this folder."
    )
    trace: bool = option(
        "--trace", is_flag=True, help="Trace activations with the real classes (imports torch)."
    )
    time_limit: float | None = shared(planning_limit_option)
    verbose: bool = option("-v", "--verbose", is_flag=True, help="Show all notes of what is assumed.")
    changes: tuple[str, ...] = shared(set_option)
    certificate: Path | None = option(
        "--certificate", type=FILE, help="Write the proof of the bound, for `evenload certify`."
    )
    as_json: bool = shared(json_option)


@click.command()
@passed_as(PlanRequest)
def plan(request: PlanRequest) -> int:
    """Say what the job JOB needs, what fits where, and how long it takes, before anything starts.

    \b
    evenload plan job.yaml
    evenload plan job.yaml --devices 6x24GB:h100 --items 270

    Needs no weights and no GPU: sizes come from the models' config files.
    """
    require("pydantic", extra="jobs", why="reading job files")
    from evenload.pipeline.planning.estimates.run_history import read_history
    from evenload.pipeline.planning.job_plan import build_job_problem, plan_job
    from evenload.pipeline.planning.plan_certificate import plan_certificate

    spec, n_items = read_job(request)
    fleet, host_bytes = fleet_of(request, spec)
    job_problem = build_job_problem(
        spec,
        n_items,
        request.job.resolve().parent,
        fleet,
        history=read_history(request.measured) if request.measured is not None else None,
        host_bytes=host_bytes,
        trace=request.trace,
    )
    progress = PlanningProgress(request.time_limit)
    try:
        found = plan_job(spec, job_problem, watch=progress)
    finally:
        progress.close()
    proved = []
    if request.certificate is not None:
        proof = plan_certificate(job_problem.problem, found, spec.job.name)
        write_certificate(request.certificate, lambda: proof)
        proved = ["", _proved(request.certificate, proof["claim"])]
    if request.as_json:
        click.echo(page_json(found.to_json(), indent=2))
        return 0
    from evenload.cli.pipeline.plan_page import page

    names = [device.name for device in fleet]
    lines = page(found, spec.job.name, n_items, names, is_verbose=request.verbose)
    click.echo("\n".join([*lines, *proved]))
    return 0


def _proved(path: Path, claim: Mapping[str, float]) -> str:
    """Say which bound a certificate proves: it may be below the plan's own."""
    bound, share = seconds_text(claim["bound"] / 1e9, 4), 100 * claim["bound"] / claim["achieved"]
    proves = f"{path}: proves {bound}, {number_text(share, 4)} % of the best possible"
    return f"{proves}; a plan's own bound may say more"


def read_job(request: PlanRequest) -> "tuple[JobSpec, int]":
    """The job and how many items it has. With ``--items`` its inputs are not looked at."""
    from evenload.pipeline.job.job_file import load_job, load_spec

    changes, job = request.changes, request.job
    if request.mode is not None:
        changes = (*changes, f"schedule.mode={request.mode}")
    if request.items is not None:
        return load_spec(job, changes, with_inputs=False), request.items
    spec, items = load_job(job, changes)
    return spec, len(items)


def fleet_of(request: PlanRequest, spec: "JobSpec") -> "tuple[list[FleetDevice], int | None]":
    """The devices to plan for, and the host memory of all; None if a modelled fleet does not say it."""
    from evenload.pipeline.planning.modelled_fleet import is_modelled, parse_host_bytes, parse_modelled

    use = spec.devices.use if request.devices is None else request.devices
    if is_modelled(use):
        return parse_modelled(str(use)), parse_host_bytes(str(use))
    from evenload.devices import DevicePool
    from evenload.pipeline.planning.job_plan import free_host_bytes, pool_devices
    from evenload.pipeline.run.machines.fleet import RunFleet, backend_of

    if (request.backend or spec.backend.name) == "ray":
        with RunFleet(use, backend_of(spec.backend, request.backend)[0]) as cluster:
            return pool_devices(cluster.pool, cluster.free_bytes()), cluster.host_bytes()
    with DevicePool.find(use) as pool:
        found = pool_devices(pool)
    if not found:
        raise ConfigError("there is no device to plan for", hint="give --devices 6x24GB:h100, say")
    return found, free_host_bytes()


QUIET_S = 2.0  # before anything is shown


class PlanningProgress:
    """A watch over the search for a plan: a line on a terminal after two seconds, and an end of its time.

    limit_s  seconds that the search may take; it ends with the best plan so far. None: no limit
    shows    write progress if ``stream`` is a terminal
    """

    def __init__(
        self,
        limit_s: float | None = None,
        *,
        shows: bool = True,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._limit_s, self._clock, self._began_s = limit_s, clock, clock()
        self._stream = sys.stderr if stream is None else stream
        self._shows, self._width = shows and self._stream.isatty(), 0

    def __call__(self, state: "SearchState") -> bool:
        """Tell how far the search is; True once its time is over."""
        took_s = self._clock() - self._began_s
        if state.is_over:
            self.close()
        elif self._shows and took_s >= QUIET_S:
            self._write(_progress_text(state, took_s))
        return self._limit_s is not None and took_s >= self._limit_s

    def close(self) -> None:
        """Take the line away."""
        if self._width:
            self._write("")

    def _write(self, text: str) -> None:
        self._stream.write("\r" + text.ljust(self._width) + ("" if text else "\r"))
        self._stream.flush()
        self._width = len(text)


def _progress_text(state: "SearchState", took_s: float) -> str:
    said = f"planning for {took_s:.0f} s: {state.n_tried} ways tried"
    if state.best_s is None or not state.bound_s:
        return said
    best = seconds_text(state.best_s, 4)
    return f"{said}, the best takes {best}, {state.best_s / state.bound_s:.3f}x the least possible"
