"""``evenload devices``: all devices with scores and load; ``drain`` and ``add`` change a running job's."""

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from evenload._terminal import end_with_reader, own_codes
from evenload.cli.options import INTERVAL, PATH, color_option, json_option, page_json
from evenload.cli.terminal.table import format_bytes, format_table, one_line
from evenload.devices.device import Device
from evenload.devices.pool import DevicePool
from evenload.devices.probe import Reading
from evenload.errors import EvenloadError
from evenload.settings import Settings, resolve, wants_color

# A CPU's load is a difference between two readings.
CPU_READING_S = 0.1


@click.group(invoke_without_command=True)
@click.option(
    "--devices", "spec", metavar="SPEC", help="List only these: all, gpu, cpu*4, cuda:0,1 or a number."
)
@click.option("--watch", is_flag=True, help="Show the load again and again, until Ctrl-C.")
@click.option(
    "--interval",
    default=1.0,
    type=INTERVAL,
    metavar="SECONDS",
    help="Time between two looks with --watch (1).",
)
@click.option("--roofline", is_flag=True, help="Measure what each selected device does at most, and keep it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; with --watch, one a line.")
@color_option
@click.pass_context
def devices(
    context: click.Context,
    spec: str | None,
    watch: bool,
    interval: float,
    roofline: bool,
    as_json: bool,
    color: str | None,
) -> int:
    """List the devices, their scores and their load.

    A star marks the devices that a run uses by default. The score (0-100) is a first guess from data sheets;
    measured speed replaces it with the first item that runs. The load counts everybody's work, not only ours.
    """
    if context.invoked_subcommand is not None:
        return 0
    settings = resolve({"devices": spec, "color": color})
    if roofline:
        return measure_devices(settings.devices, as_json=as_json)
    with DevicePool.discover() as pool:
        page = DeviceTable(pool, settings, only_selected=spec is not None)
        if watch:
            return _watch(page, interval, as_json)
        page.pool.readings()
        if any(device.family == "cpu" for device in page.pool):
            time.sleep(CPU_READING_S)
        page.print([page.json()] if as_json else page.lines())
        if not as_json:
            for note in page.notes():
                click.echo(note, err=True)
    if page.error is not None:
        raise page.error
    return 0


run_folder_option = click.option(
    "--run", "folder", metavar="FOLDER", required=True, type=PATH, help="The job's folder."
)


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@run_folder_option
@click.option("--now", "at_once", is_flag=True, help="Kill their workers; what they ran is run elsewhere.")
@json_option
def drain(ids: tuple[str, ...], folder: Path, at_once: bool, as_json: bool) -> int:
    """Let devices of a running job end what they have, and free them.

    Only who runs the job can ask for it. Prints the devices that go on.

    \b
    evenload devices drain cuda:3 --run runs/tonight
    """
    return _ask(folder, "drain", ids, at_once, as_json)


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="SPEC...")
@run_folder_option
@json_option
def add(ids: tuple[str, ...], folder: Path, as_json: bool) -> int:
    """Have more devices work for a running job: cuda:3, or cpu*2, or one that was drained.

    Only who runs the job can ask for it. Prints all its devices.
    """
    return _ask(folder, "add", ids, False, as_json)


def _ask(folder: Path, action: str, ids: tuple[str, ...], at_once: bool, as_json: bool) -> int:
    from evenload.executor.loop.control import ask

    devices = ask(folder, action, [one for given in ids for one in given.split(",") if one], at_once=at_once)
    click.echo(page_json({"schema": 1, "devices": devices}) if as_json else "\n".join(devices))
    return 0


devices.add_command(drain)
devices.add_command(add)


class DeviceTable:
    """A view of a pool, as text or JSON: everything in it, or only what the setting selects."""

    def __init__(self, pool: DevicePool, settings: Settings, *, only_selected: bool):
        self.settings = settings
        self.colored = wants_color(settings.color, sys.stdout)
        self.error: EvenloadError | None = None
        self.selected: tuple[Device, ...] = ()
        self.pool = pool
        try:
            selection = pool.select(settings.devices)
            self.selected = tuple(selection)
        except EvenloadError as error:
            # With a flag there is nothing to list; else the list still tells what could be chosen.
            if only_selected:
                raise
            self.error = error
        else:
            self.pool = selection if only_selected else pool
        self.only_selected = only_selected

    def json(self) -> str:
        readings, facts = self.pool.readings(), self.pool.facts()
        page: dict[str, Any] = {
            "schema": 1,
            "devices": [{**facts[d], **_loads(readings[d])} for d in facts],
            "selection": {
                "spec": self.settings.devices,
                "source": self.settings.source("devices"),
                "ids": [device.id for device in self.selected],
            },
            "probes": [
                {
                    "name": r.name,
                    "status": r.status,
                    "reason": r.reason,
                    "hint": r.hint,
                    "notes": list(r.notes),
                }
                for r in self.pool.reports
            ],
        }
        if self.error is not None:
            page["selection"]["error"] = self.error.message
        return page_json(page)

    def lines(self) -> list[str]:
        readings = self.pool.readings()
        rows = [self._row(device, readings[device.id]) for device in self.pool]
        head = ("", "id", "kind", "backend", "name", "memory", "units", "score", "load", "temp", "others")
        title, *body = format_table(head, rows, right=("memory", "units", "score", "load", "temp", "others"))
        if self.colored:
            title = click.style(title, bold=True)
            body = [
                click.style("*", fg="green", bold=True) + line[1:] if line[0] == "*" else line
                for line in body
            ]
        return [title, *body] if self.only_selected else [title, *body, "", one_line(self._footer())]

    def print(self, lines: list[str]) -> None:
        """Print ``lines`` of this table, with its colours."""
        click.echo("\n".join(lines), file=own_codes(sys.stdout) if self.colored else None, color=self.colored)

    def notes(self) -> list[str]:
        """Notes, warnings and hints of the probes, one line each."""
        lines = []
        for report in self.pool.reports:
            lines += [f"note: {note}" for note in report.notes]
            if report.status == "failed" or (report.status == "missing" and report.name == "cuda"):
                lines.append(f"warning: {report.name}: {report.reason}")
            if report.hint and (report.devices or report.name == "cuda"):
                lines.append(f"  hint: {report.hint}")
        return lines

    def _row(self, device: Device, reading: Reading) -> tuple[str, ...]:
        # The CPU as it was found is what the chosen slots are cut from.
        is_used = any(
            chosen.id == device.id or chosen.family == device.family == "cpu" for chosen in self.selected
        )
        return (
            "*" if is_used and not self.only_selected else "",
            device.id,
            device.kind,
            device.backend,
            f"same as {device.same_as}" if device.same_as else device.name,
            _memory(device, reading),
            _units(device),
            f"{self.pool.score(device.id):.1f}",
            "–" if reading.utilization is None else f"{reading.utilization:.0%}",
            "" if reading.temperature_c is None else f"{reading.temperature_c:.0f} °C",
            "" if reading.foreign_processes is None else str(reading.foreign_processes),
        )

    def _footer(self) -> str:
        setting = f"devices = {self.settings.devices} ({self.settings.source('devices')})"
        if self.error is not None:
            return f"{setting}: cannot be used"
        ids = ", ".join(device.id for device in self.selected)
        slots = [device.threads or 1 for device in self.selected if device.family == "cpu"]
        threads = f" ({'+'.join(map(str, slots))} threads)" if len(slots) > 1 else ""
        return f"* {setting}: {ids}{threads}"


def _memory(device: Device, reading: Reading) -> str:
    """The total; also the used part, if the driver counts this very memory (a CPU slot has only a share)."""
    total, used = format_bytes(device.memory_bytes), reading.memory_used_bytes
    is_own = used is not None and reading.memory_total_bytes == device.memory_bytes
    return f"{format_bytes(used)} of {total}" if is_own else total


def _units(device: Device) -> str:
    if not device.compute_units:
        return "–"
    unit = {"cpu": "core", "cuda": "SM"}.get(device.family, "unit")
    return f"{device.compute_units} {unit}{'s' * (device.compute_units > 1)}"


def _loads(reading: Reading) -> dict[str, Any]:
    loads: dict[str, Any] = asdict(reading)
    del loads["memory_total_bytes"]
    return loads


def _watch(page: DeviceTable, interval: float, as_json: bool) -> int:
    """Show the load again and again until Ctrl-C; the exit code is then 0."""
    end_with_reader()
    is_terminal = sys.stdout.isatty() and not as_json
    drawn = 0
    try:
        page.pool.readings()
        time.sleep(CPU_READING_S)
        while True:
            lines = [page.json()] if as_json else page.lines()
            if is_terminal and drawn:
                # up to the first line of the last table, and clear from there
                own_codes(sys.stdout).write(f"\x1b[{drawn}F\x1b[J")
            page.print(lines)
            drawn = len(lines)
            time.sleep(interval)
    except KeyboardInterrupt:
        return 0


def measure_devices(spec: str | int, *, as_json: bool) -> int:
    """Measure the devices one after the other; returns the exit code. Raises as ``Executor`` does."""
    from evenload.devices.pool import DevicePool
    from evenload.devices.rates.known import keep_rates
    from evenload.executor import Executor

    rows: list[dict[str, Any]] = []
    with DevicePool.discover() as pool:
        for device in pool.select(spec):
            with Executor(DevicePool([device]), echo=False) as executor:
                rates = executor.submit(_measure_here).result()
            keep_rates(device, rates)
            rows.append({"id": device.id, "name": device.name, **rates})
    if as_json:
        click.echo(page_json({"schema": 1, "devices": rows}))
        return 0
    shown = [
        [row["id"], row["name"], f"{row['flop_per_s'] / 1e9:,.0f}", f"{row['bytes_per_s'] / 1e9:,.1f}"]
        for row in rows
    ]
    for line in format_table(["id", "name", "GFLOP/s", "GB/s"], shown, right=("GFLOP/s", "GB/s")):
        click.echo(line)
    return 0


def _measure_here() -> dict[str, float]:
    """In a worker: measure its device."""
    from evenload.devices.environment import current
    from evenload.devices.rates.known import measure

    return measure(current().torch)
