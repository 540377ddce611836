"""Run the suites that use compiled kernels once for each kind of processor that this one can be.

    python scripts/test_levels.py [level ...] [-- pytest's options and paths]

A level is what EVENLOAD_PROCESSOR takes: a baseline, and with ``+`` the extensions that kernels look for.
The libraries below us choose kernels for themselves: each is lowered to the same baseline by a variable of
its own (CONTRIBUTING.md has the table). The first of several levels is tested as a machine without a C++
compiler, too. x86-64-v2 is older than any processor that runs this: a few suites in an emulator, as root,
where Debian's qemu-user is installed.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from evenload.errors import EvenloadError
from evenload.native import machine

ROOT = Path(__file__).resolve().parents[1]
SUITES = ("merkle", "zk", "gpu", "native", "balance", "moe", "clients")
EXTENSIONS = ("sha", "avx512ifma")  # those with kernels of their own
LIBRARIES: Mapping[str, Mapping[str, str]] = {  # what each library has to be told for a baseline
    "x86-64-v4": {
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
        "ATEN_CPU_CAPABILITY": "avx512",
        "MKL_ENABLE_INSTRUCTIONS": "AVX512",
        "OPENBLAS_CORETYPE": "SkylakeX",
    },
    "x86-64-v3": {
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
    },
}
NUMPY_ABOVE = {"x86-64-v4": ("AVX512_",), "x86-64-v3": ("AVX512_", "X86_V4")}
EMULATED = "x86-64-v2"
EMULATOR = "qemu-x86_64"
EMULATED_SUITES = ("balance/policy", "balance/sizes", "balance/dealing", "gpu/llvm/test_program.py")
V2_FLAGS = "fpu tsc cx8 cmov mmx fxsr sse sse2 syscall nx lm pni ssse3 cx16 sse4_1 sse4_2 popcnt lahf_lm"


def levels_here() -> Iterator[str]:
    """Each baseline of this processor without extensions, and with each that it has."""
    for baseline in machine.baselines_here():
        yield baseline
        for extension in EXTENSIONS:
            needs_v4 = extension.startswith("avx512") and baseline != "x86-64-v4"
            if extension in machine.host_features() and not needs_v4:
                yield f"{baseline}+{extension}"


def environment_of(level: str) -> dict[str, str]:
    """The variables by which our kernels, and each library with kernels of its own, take this level."""
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

    baseline = level.partition("+")[0]
    above = NUMPY_ABOVE.get(baseline, ())
    disabled = [one for one in __cpu_dispatch__ if one.startswith(above) and __cpu_features__[one]]
    numpy = {"NPY_DISABLE_CPU_FEATURES": " ".join(disabled)} if above and disabled else {}
    return {"EVENLOAD_PROCESSOR": level, **LIBRARIES.get(baseline, {}), **numpy}


def why_not_emulated() -> str | None:
    """Why the older processor cannot be emulated here, or None."""
    if shutil.which(EMULATOR) is None:
        return f"there is no {EMULATOR} (apt-get install qemu-user)"
    return None if os.geteuid() == 0 else "only root may put another list of its extensions in its place"


def run_emulated(options: list[str]) -> int:
    """Run a few suites on a Nehalem, whose list of extensions stands where Linux has this one's."""
    rows = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
        file.writelines(f"{'flags : ' + V2_FLAGS if row.startswith('flags') else row}\n" for row in rows)
        file.flush()
        inner = f'mount --bind {file.name} /proc/cpuinfo && exec "$@"'
        command = ["unshare", "--mount", "sh", "-c", inner, "sh", EMULATOR, "-cpu", "Nehalem", sys.executable]
        return subprocess.run([*command, "-m", "pytest", "-q", *options], cwd=ROOT, check=False).returncode


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
        if level == EMULATED and why_not_emulated() is None:
            continue
        if baseline not in here or any(f"{baseline}+{one}" not in here for one in more):
            parser.error(
                f"{level[:60]!r} is no level of this processor; write any of {', '.join(here)}; or nothing, "
                "which tests each of them; pytest's options and paths stand after --"
            )
    return asked or [*here, EMULATED]


def main(argv: list[str]) -> int:
    at = argv.index("--") if "--" in argv else len(argv)
    levels, options = asked_levels(argv[:at]), argv[at + 1 :]
    has_paths = any((ROOT / option.partition("::")[0]).exists() for option in options)
    command = [
        str(Path(sys.executable).parent / "pytest"),
        "-q",
        "--numprocesses",
        "4",
        "--dist",
        "worksteal",
    ]
    found: dict[str, str] = {}
    for level in levels:
        suites = [] if has_paths else EMULATED_SUITES if level == EMULATED else SUITES
        asked = [*options, *(str(ROOT / "tests" / suite) for suite in suites)]
        if level == EMULATED:
            why = why_not_emulated()
            print(f"=== {level}, emulated", flush=True)
            found[level] = f"skipped: {why}" if why else "FAILED" if run_emulated(asked) else "passed"
            continue
        own = environment_of(level)
        if level == levels[0] and len(levels) > 1:
            own["CXX"] = "no-compiler-here"  # torch asks for no other program then
        print("===", *(f"{name}={value!r}" for name, value in own.items()), flush=True)
        done = subprocess.run([*command, *asked], cwd=ROOT, env={**os.environ, **own}, check=False)
        found[level] = "FAILED" if done.returncode else "passed"
    for level, what in found.items():
        print(f"{level}: {what}")
    return "FAILED" in found.values()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
