"""``evenload exec python script.py``: an unchanged script, its process pools dealt by evenload."""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from evenload._private_files import plain_file
from evenload.cli.monitoring.monitoring import dash_option, is_dash_set
from evenload.cli.options import FILE, NumberRange
from evenload.errors import ConfigError, quoted

WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
"""Flags of an interpreter whose value is the next word."""


@click.command("exec", context_settings={"allow_interspersed_args": False})
@click.option("--devices", help="Give each worker one of these: cuda:0,1 | all | cpu*4.")
@click.option(
    "--timeout",
    "timeout_s",
    type=NumberRange(0, 1_000_000, min_open=True),
    metavar="SECONDS",
    help="Kill a worker whose call takes longer, and make it once more.",
)
@click.option("--observe", is_flag=True, help="Change nothing, only measure the script's own pools.")
@dash_option
@click.option("-o", "--out", type=FILE, help="Write what was measured to this file, as JSON.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the summary as one line of JSON, still on standard error."
)
@click.option("-q", "--quiet", is_flag=True, help="Print no summary.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="COMMAND...", required=True)
def exec_script(
    devices: str | None,
    timeout_s: float | None,
    observe: bool,
    has_dash: bool,
    out: Path | None,
    as_json: bool,
    quiet: bool,
    words: tuple[str, ...],
) -> None:
    """Run a script as it is; its process pools are dealt by measured speed, and survive crashes.

    COMMAND is ``python script.py``, ``python -m module``, or a command that is written in Python, such as
    ``pytest``, with its arguments. Output, exit code and results are the script's own.
    """
    from evenload.integrations.script.launcher import command

    python, flags, rest = _interpreter(list(words))
    if not rest or (rest[0].startswith("-") and rest[0] != "-m") or rest == ["-m"]:
        raise ConfigError(
            f"{quoted(' '.join(words))} names no script",
            hint="evenload exec python script.py, or python -m module",
        )
    if observe and has_dash:
        raise ConfigError(
            "--dash shows pools that evenload deals, and --observe leaves them as they are",
            hint="leave one of the two out; what --observe measures is told at the end",
        )
    asked: dict[str, Any] = {
        "devices": devices,
        "timeout_s": timeout_s,
        "observe": observe,
        "json": as_json,
        "quiet": quiet,
    }
    if out is not None:
        asked["out"] = str(out.absolute())
        _make_way(out, rest)
    if devices is not None:
        from evenload.devices.pool import DevicePool

        DevicePool.find(devices)  # refuses what is no device here, before the script's first pool does
    sys.stdout.flush()
    if rest[0] != "-m" and not os.path.exists(rest[0]):
        os.execv(python, [python, *flags, *rest])  # which says what is wrong in its own words
    if has_dash or (not observe and is_dash_set()):
        from evenload._live_page import start_apart

        asked["page"] = start_apart()
    os.execv(python, command(python, flags, asked, rest))


def _make_way(out: Path, words: list[str]) -> None:
    """Delete what an earlier run has written to ``out``: a script that is killed leaves nothing in its place.

    Raises ConfigError where nothing can be written, or the file is one that ``words`` name.
    """
    folder = out.absolute().parent
    if out.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):  # before the script has run
        raise ConfigError(
            f"{quoted(str(out))} cannot be written", hint="name a file in a folder that you may write to"
        )
    if out.is_file():
        if any(os.path.isfile(word) and out.samefile(word) for word in words):
            raise ConfigError(f"-o {quoted(str(out))} would overwrite what is read", hint="name another file")
        out.unlink()


def _interpreter(words: list[str]) -> tuple[str, list[str], list[str]]:
    """Return the interpreter of a command, its flags, and what it is to run."""
    name = os.path.basename(words[0])
    found = shutil.which(words[0])
    if found is None and not os.path.isfile(words[0]):
        kind = "script" if name.endswith(".py") else "command"
        raise ConfigError(f"there is no {kind} {quoted(words[0])}", hint="evenload exec python script.py")
    if name.startswith(("python", "pypy")):
        at = 1
        while at < len(words) and words[at].startswith("-") and words[at] not in ("-m", "-c", "-"):
            at += 2 if words[at] in WITH_VALUE else 1
        return found or words[0], words[1:at], words[at:]
    if words[0].endswith(".py") and os.path.isfile(words[0]):
        return sys.executable, [], words
    path = found or words[0]
    with plain_file(Path(path)) as file:
        first = file.readline(1000)
    if not first.startswith(b"#!") or b"python" not in first:
        raise ConfigError(f"{quoted(path)} is not written in Python", hint="evenload exec python script.py")
    python, *flags = os.fsdecode(first[2:]).split()
    if os.path.basename(python) == "env":
        python, *flags = flags
    return shutil.which(python) or python, flags, [path, *words[1:]]
