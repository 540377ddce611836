"""Run the suites that use compiled kernels once for each kind of processor that this one can be.

    python scripts/test_levels.py [level ...] [-- pytest's options and paths]

A level is what EVENLOAD_PROCESSOR takes: a baseline, and with ``+`` the extensions that kernels look for.
The first of several is tested as a machine without a C++ compiler, too.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from evenload.errors import EvenloadError
from evenload.native import machine

ROOT = Path(__file__).resolve().parents[1]
SUITES = ("merkle", "zk", "gpu", "native", "balance", "moe", "clients")
EXTENSIONS = ("sha", "avx512ifma")  # those with kernels of their own


def levels_here() -> Iterator[str]:
    """Each baseline of this processor without extensions, and with each that it has."""
    for baseline in machine.baselines_here():
        yield baseline
        for extension in EXTENSIONS:
            needs_v4 = extension.startswith("avx512") and baseline != "x86-64-v4"
            if extension in machine.host_features() and not needs_v4:
                yield f"{baseline}+{extension}"


def asked_levels(words: list[str]) -> list[str]:
    """What stands before ``--``, or all levels here. Refuses what kernels of this processor cannot be."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
        usage="%(prog)s [-h] [LEVEL ...] [-- pytest's options and paths]",
    )
    parser.add_argument("levels", nargs="*", metavar="LEVEL", help="none: each that this processor has")
    asked = parser.parse_args(words).levels
    try:
        here = list(levels_here())
    except EvenloadError as error:  # EVENLOAD_PROCESSOR is set, and none
        parser.error(str(error))
    if not here:
        parser.error("no kernels are made for this system's processors, so there are no levels to test")
    for level in asked:
        baseline, *more = level.split("+")
        if baseline not in here or any(f"{baseline}+{one}" not in here for one in more):
            parser.error(
                f"{level[:60]!r} is no level of this processor; write any of {', '.join(here)}; or nothing, "
                "which tests each of them; pytest's options and paths stand after --"
            )
    return asked or here


def main(argv: list[str]) -> int:
    at = argv.index("--") if "--" in argv else len(argv)
    levels, options = asked_levels(argv[:at]), argv[at + 1 :]
    if not any((ROOT / option.partition("::")[0]).exists() for option in options):
        options += [str(ROOT / "tests" / suite) for suite in SUITES]
    command = [
        str(Path(sys.executable).parent / "pytest"),
        "-q",
        "--numprocesses",
        "4",
        "--dist",
        "worksteal",
    ]
    failed = []
    for level in levels:
        print(f"=== EVENLOAD_PROCESSOR={level}", flush=True)
        environment = {**os.environ, "EVENLOAD_PROCESSOR": level}
        if level == levels[0] and len(levels) > 1:
            environment["CXX"] = "no-compiler-here"  # torch asks for no other program then
        if subprocess.run([*command, *options], cwd=ROOT, env=environment, check=False).returncode:
            failed.append(level)
    for level in levels:
        print(f"{level}: {'FAILED' if level in failed else 'passed'}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
