"""``evenload doctor``: what works on this machine, what does not, and what to do about it."""

import platform
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from evenload._plain_text import plain
from evenload._terminal import own_codes
from evenload._version import __version__
from evenload.cli.options import color_option, json_option, page_json
from evenload.cli.terminal.table import format_table
from evenload.devices.probe import PROBES, ProbeReport, run_probes
from evenload.devices.probes.torch_build import TorchBuild, torch_build
from evenload.errors import EvenloadError, NoUsableDevice, quoted
from evenload.settings import SETTINGS, Settings, resolve, unknown_variables, user_file, wants_color

_REQUIREMENT = re.compile(
    r"([A-Za-z0-9._-]+)[^;>=]*(?:>=\s*([0-9.]+))?[^;]*;.*extra\s*==\s*['\"]([^'\"]+)['\"]"
)


@dataclass(frozen=True, slots=True)
class Package:
    """An optional package: its version, None if not installed, and the oldest that will do, "" for any."""

    name: str
    version: str | None
    least: str = ""

    @property
    def is_usable(self) -> bool:
        return self.version is not None and _numbers(self.version) >= _numbers(self.least)

    def __str__(self) -> str:
        if self.version is None:
            return f"{self.name} (not installed)"
        return f"{self.name} {self.version}" + ("" if self.is_usable else f" (needs {self.least})")


@dataclass(frozen=True, slots=True)
class Extra:
    """A group of optional packages that are installed together."""

    name: str
    packages: tuple[Package, ...]

    @property
    def is_usable(self) -> bool:
        return all(package.is_usable for package in self.packages)

    @property
    def install(self) -> str:
        return f"pip install 'evenload[{self.name}]'"


def installed_extras() -> list[Extra]:
    """Every extra but "all", with its packages; none if evenload itself is not installed."""
    try:
        requirements = metadata.requires("evenload") or []
    except metadata.PackageNotFoundError:
        return []
    packages: dict[str, list[Package]] = {}
    for requirement in requirements:
        match = _REQUIREMENT.match(requirement)
        if match is not None and match[1] != "evenload" and match[3] != "all":
            packages.setdefault(match[3], []).append(Package(match[1], _version(match[1]), match[2] or ""))
    return [Extra(name, tuple(needed)) for name, needed in packages.items()]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: 2.13.0+cpu is 2, 13, 0."""
    return tuple(int(number) for number in re.findall(r"\d+", re.split(r"[^0-9.]", version)[0]))


COLORS = {"ok": "green", "missing": "yellow", "failed": "red"}


@click.command()
@json_option
@click.option("-v", "--verbose", is_flag=True, help="Print the traceback of a probe that failed.")
@color_option
def doctor(as_json: bool, verbose: bool, color: str | None) -> int:
    """Say what works on this machine, and what to install for the rest.

    Looks at every kind of device afresh, at the optional packages, and at the settings with their sources.
    Changes nothing. Ends with 0, or with 2 if a settings file or variable is wrong: a policy, backend or list
    of devices that any command would refuse, too.
    """
    checkup = examine(color)
    if as_json:
        click.echo(page_json(_as_json(checkup)))
    else:
        colored = wants_color(color or "auto", sys.stdout)
        lines = _lines(checkup, verbose, colored)
        click.echo("\n".join(lines), file=own_codes(sys.stdout) if colored else None, color=colored)
    return 2 if checkup.settings_error or checkup.faults else 0


@dataclass
class Checkup:
    """The findings on this machine: devices, extras, settings, and what to do.

    settings_error  why there are no settings
    faults          settings by name that no command would accept
    advice          what to do, one entry per problem worth solving
    """

    reports: tuple[ProbeReport, ...]
    extras: list[Extra]
    torch: TorchBuild
    settings: Settings | None = None
    settings_error: EvenloadError | None = None
    faults: dict[str, EvenloadError] = field(default_factory=dict)
    advice: list[str] = field(default_factory=list)


def examine(color: str | None = None) -> Checkup:
    """Look at everything; a fault in one part is noted and does not keep the others from being looked at."""
    checkup = Checkup(run_probes({**PROBES, "wgpu": _fresh_wgpu}), installed_extras(), torch_build())
    try:
        checkup.settings = resolve({"color": color})
    except EvenloadError as error:
        checkup.settings_error = error
        checkup.advice.append(_advice("settings", error))
    else:
        _try_settings(checkup, checkup.settings)
    for report in checkup.reports:
        if report.status in ("failed", "missing") and report.name != "mps":
            checkup.advice.append(f"{report.name}: {report.reason}; {report.hint}")
    has_nvidia = any(d.backend == "cuda" for report in checkup.reports for d in report.devices)
    if has_nvidia and checkup.torch.version and not checkup.torch.cuda:
        checkup.advice.append(
            "torch is built without CUDA, so its models run on the CPU; install its CUDA build"
        )
    for variable in unknown_variables():
        checkup.advice.append(f"{variable} is set and means nothing to evenload; look for a slip of the pen")
    return checkup


def _try_settings(checkup: Checkup, settings: Settings) -> None:
    """Use each setting as a command would. A device that is not on this machine is advice, not a fault."""
    from evenload.balance.policy import policy_from_name
    from evenload.devices import DevicePool
    from evenload.executor.backends import make_backend

    devices = [device for report in checkup.reports for device in report.devices]
    checks: dict[str, Callable[[], object]] = {
        "devices": lambda: DevicePool(devices, reports=checkup.reports).select(settings.devices),
        "policy": lambda: policy_from_name(settings.policy),
        "backend": lambda: make_backend(settings.backend).close(0.0),
    }
    for name, check in checks.items():
        try:
            check()
        except EvenloadError as error:
            if not isinstance(error, NoUsableDevice):
                checkup.faults[name] = error
            checkup.advice.append(
                _advice(f"{name} = {quoted(settings[name])} ({settings.source(name)})", error)
            )


def _advice(what: str, error: EvenloadError) -> str:
    return f"{what}: {error.message}" + (f"; {error.hint}" if error.hint else "")


def _fresh_wgpu() -> ProbeReport:
    from evenload.devices.probes import wgpu

    return wgpu.probe(refresh=True)


def _lines(checkup: Checkup, verbose: bool, colored: bool) -> list[str]:
    def title(text: str) -> str:
        return click.style(text, bold=True) if colored else text

    python = f"Python {platform.python_version()}"
    lines = [f"evenload {__version__}, {python}, {platform.system()} {platform.machine()}", ""]
    lines += [title("devices"), *_marked([_probe_row(report) for report in checkup.reports], colored), ""]
    for report in checkup.reports:
        if verbose and report.traceback:
            lines += [f"  {plain(line)}" for line in report.traceback.rstrip().splitlines()] + [""]
    if checkup.extras:
        lines += [title("extras"), *_marked([_extra_row(extra) for extra in checkup.extras], colored), ""]
    lines += [title("settings"), *map(plain, _settings_lines(checkup)), ""]
    lines += [
        title("to do"),
        *(f"  {plain(entry)}" for entry in checkup.advice or ["nothing: all that can work does"]),
    ]
    return lines


def _marked(rows: list[tuple[str, str, str]], colored: bool) -> list[str]:
    """Rows whose first cell is a status word, coloured by it."""
    lines = format_table(("", "", ""), rows)[1:]
    if not colored:
        return [f"  {line}" for line in lines]
    return [
        "  " + click.style(row[0], fg=COLORS.get(row[0])) + line[len(row[0]) :]
        for row, line in zip(rows, lines, strict=True)
    ]


def _probe_row(report: ProbeReport) -> tuple[str, str, str]:
    found = ", ".join(f"{device.id} {device.name}" for device in report.devices)
    return (
        report.status,
        report.name,
        "; ".join(part for part in (found, report.reason, *report.notes) if part),
    )


def _extra_row(extra: Extra) -> tuple[str, str, str]:
    packages = ", ".join(map(str, extra.packages))
    if extra.is_usable:
        return "ok", extra.name, packages
    return "missing", extra.name, f"{packages}: {extra.install}"


def _settings_lines(checkup: Checkup) -> list[str]:
    if checkup.settings is None:
        return [f"  {checkup.settings_error}"]
    rows = [(name, str(checkup.settings[name]), checkup.settings.source(name)) for name in SETTINGS]
    lines = [f"  {line}" for line in format_table(("", "", ""), rows)[1:]]
    return lines + [f"  {path}: {'read' if path.exists() else 'not there'}" for path in _files()]


def _files() -> tuple[Path, Path]:
    return Path("evenload.toml"), user_file()


def _as_json(checkup: Checkup) -> dict[str, Any]:
    settings = checkup.settings
    return {
        "schema": 1,
        "evenload": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "probes": [asdict(report) for report in checkup.reports],
        "extras": [
            {
                "name": extra.name,
                "is_usable": extra.is_usable,
                "packages": [asdict(package) for package in extra.packages],
                "install": extra.install,
            }
            for extra in checkup.extras
        ],
        "torch": {"version": checkup.torch.version, "cuda": checkup.torch.cuda, "hip": checkup.torch.hip},
        "settings": [
            {"name": name, "value": settings[name], "source": settings.source(name)}
            for name in settings or ()
        ]
        if settings is not None
        else None,
        "settings_faults": {name: error.message for name, error in checkup.faults.items()},
        "settings_error": None if checkup.settings_error is None else checkup.settings_error.message,
        "files": [{"path": str(path), "exists": path.exists()} for path in _files()],
        "advice": checkup.advice,
    }
