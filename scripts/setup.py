"""Make ``.venv`` and install evenload with what one purpose needs.

    python scripts/setup.py demo|dev|bench

Needs nothing but Python >= 3.11 with venv and pip. Things outside pip (a Vulkan driver, a browser, an npm
package) are *system steps*: each knows how to tell whether it is there, how to install it where that is
possible, and what to say where it is not. A system step never fails the set-up: the tests that need it skip
with the same sentence.
"""

import argparse
import ast
import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
OLDEST = (3, 11)


@dataclass(frozen=True)
class SystemStep:
    """A Debian package that a purpose is better with; ``without`` says what is missing if it is not there."""

    name: str
    is_there: Callable[[], bool]
    packages: tuple[str, ...]
    without: str


@dataclass(frozen=True)
class NpmStep:
    """An npm package that tests call as an outside check; it goes to ./node_modules, which git ignores."""

    package: str
    version: str
    without: str

    def is_there(self) -> bool:
        facts = ROOT / "node_modules" / self.package / "package.json"
        try:
            return json.loads(facts.read_text(encoding="utf-8"))["version"] == self.version
        except (OSError, ValueError, KeyError):
            return False


@dataclass(frozen=True)
class Purpose:
    """Extras and dependency groups to install, and system steps to try."""

    extras: tuple[str, ...]
    groups: tuple[str, ...]
    system: tuple[SystemStep, ...] = field(default=())
    npm: tuple[NpmStep, ...] = field(default=())


DRIVER_FOLDERS = ("/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/etc/vulkan/icd.d")


def has_vulkan() -> bool:
    """Is there a driver for WGSL kernels? macOS and Windows bring Metal and Direct3D."""
    return not sys.platform.startswith("linux") or any(
        Path(folder).glob("*.json") for folder in DRIVER_FOLDERS if Path(folder).is_dir()
    )


VULKAN = SystemStep(
    name="a Vulkan driver in software",
    is_there=has_vulkan,
    packages=("mesa-vulkan-drivers",),
    without="no Vulkan driver, so WGSL kernels are not tested (apt-get install mesa-vulkan-drivers)",
)

CHROMIUM = SystemStep(
    name="Chromium",
    is_there=lambda: bool(shutil.which("chromium") or shutil.which("chromium-browser")),
    packages=("chromium",),
    without="no Chromium, so the pages are not tested in a browser (apt-get install chromium)",
)

SNARKJS = NpmStep(
    package="snarkjs",
    version="0.7.6",
    without="no snarkjs, so nobody else checks our proofs (npm install --no-save snarkjs@0.7.6)",
)

SOLC = NpmStep(
    package="solc",
    version="0.8.37",
    without="no Solidity compiler, so the contracts that verify proofs are not run",
)
EVM = NpmStep(
    package="@ethereumjs/evm",
    version="10.1.3",
    without="no EVM, so the contracts that verify proofs are not run",
)

CIRCOM = NpmStep(
    package="circom2",
    version="0.2.23",
    without="no circom, so no witnesses by its circuits (npm install --no-save circom2@0.2.23)",
)

MERKLE_TREE = NpmStep(
    package="@openzeppelin/merkle-tree",
    version="1.0.8",
    without="no merkle-tree of OpenZeppelin, so nobody else checks the roots of values",
)

PURPOSES = {
    "demo": Purpose(("jobs", "torch"), ("demo",)),
    "dev": Purpose(("all",), ("dev",), (VULKAN, CHROMIUM), (SNARKJS, SOLC, EVM, CIRCOM, MERKLE_TREE)),
    "bench": Purpose(("all",), ("dev", "bench"), (VULKAN, CHROMIUM), (SNARKJS,)),
}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("purpose", choices=PURPOSES)
    name = parser.parse_args(argv).purpose
    if sys.version_info < OLDEST:
        needed = ".".join(map(str, OLDEST))
        print(
            f"error: evenload needs Python {needed} or newer, this is {sys.version.split()[0]}",
            file=sys.stderr,
        )
        print("  hint: make PYTHON=python3.12 demo", file=sys.stderr)
        return 2
    purpose = PURPOSES[name]
    if not (BIN / "pip").exists():  # without Debian's python3-venv, a first try leaves one that lacks it
        print(f"making {VENV.relative_to(ROOT)} with Python {sys.version.split()[0]}")
        venv.create(VENV, with_pip=True)
    install(purpose)
    for step in purpose.system:
        provide(step)
    provide_npm(purpose.npm)
    for done in implied_by(name):
        (VENV / f".ready-{done}").touch()
    return 0


def implied_by(name: str) -> list[str]:
    """The purposes that are served once ``name`` is: dev includes demo, bench includes both."""
    order = list(PURPOSES)
    return order[: order.index(name) + 1]


def install(purpose: Purpose) -> None:
    """Install by uv, in a third of the time; by pip where uv is not to be had or fails."""
    # Torch pinned: a looser range would fetch the newest build, gigabytes of it.
    torch = [pinned("torch")] if {"torch", "all"} & set(purpose.extras) else []
    groups = [option for group in purpose.groups for option in ("--group", group)]
    wanted = [*torch, "-e", f".[{','.join(purpose.extras)}]", *groups, "-c", "constraints.txt"]
    if run_pip(pinned("uv")):
        listed = subprocess.run([*pip(), "config", "list"], cwd=ROOT, capture_output=True, text=True)
        settings = uv_settings(listed.stdout)
        if settings is not None:
            print("uv pip install", *wanted, flush=True)
            command = [str(BIN / "uv"), "pip", "install", "--quiet", "--python", str(BIN / "python"), *wanted]
            if is_done(command, {**settings, **os.environ}):
                return
    if not (run_pip("pip>=25.1", "--upgrade") and run_pip(*wanted)):
        print("error: pip could not install the above; its own message says why", file=sys.stderr)
        print(
            "  hint: check the network or set PIP_INDEX_URL, then run the same command again", file=sys.stderr
        )
        raise SystemExit(1)


UV_NAMES = {
    "cert": "SSL_CERT_FILE",
    "constraint": "UV_CONSTRAINT",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "index-url": "UV_DEFAULT_INDEX",
    "no-index": "UV_NO_INDEX",
    "proxy": "ALL_PROXY",
    "trusted-host": "UV_INSECURE_HOST",
}
"""Environment variables by which uv learns where pip looks for packages."""

OF_PIP_ALONE = {
    "cache-dir", "config-file", "default-timeout", "disable-pip-version-check", "no-cache-dir", "no-compile",
    "no-input", "progress-bar", "require-virtualenv", "retries", "root-user-action", "timeout",
}  # fmt: skip


def uv_settings(listed: str) -> dict[str, str] | None:
    """Pip's settings as environment variables of uv, which reads none of them; None if uv has not all.

    listed  what ``pip config list`` prints: lines ``global.index-url='https://...'``
    """
    sections, found = ("global", "install", ":env:"), {}
    lines = [line.partition("=") for line in listed.splitlines()]
    known = [(*key.rpartition(".")[::2], value) for key, _, value in lines]
    for section, name, value in sorted(known, key=lambda one: one[0] == ":env:"):
        if section in sections and name not in OF_PIP_ALONE:
            if name not in UV_NAMES:
                return None
            separator = "," if name == "find-links" else " "
            found[UV_NAMES[name]] = separator.join(ast.literal_eval(value).split())
    return {"UV_INDEX_STRATEGY": "unsafe-best-match", **found}  # the best of all indexes, as pip has it


def pinned(package: str) -> str:
    """The exact version of ``package`` that constraints.txt names."""
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line.startswith(f"{package}=="):
            return line.strip()
    raise SystemExit(f"constraints.txt names no version of {package}")


def pip() -> list[str]:
    return [str(BIN / "python"), "-m", "pip"]


def run_pip(*arguments: str) -> bool:
    # Nothing is compiled beforehand: of 24,000 files a run imports a tenth, and Python keeps those compiled.
    print("pip install", *arguments, flush=True)
    return is_done([*pip(), "install", "--quiet", "--disable-pip-version-check", "--no-compile", *arguments])


def is_done(command: list[str], environment: dict[str, str] | None = None) -> bool:
    return subprocess.run(command, cwd=ROOT, env=environment).returncode == 0


def provide(step: SystemStep) -> None:
    """Install a system step through apt where we may; say what is missing where we may not."""
    if step.is_there():
        return
    can_install = shutil.which("apt-get") and hasattr(os, "geteuid") and os.geteuid() == 0
    if can_install:
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        quiet = {"env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run(["apt-get", "update", "-qq"], check=False, **quiet)
        install_line = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *step.packages]
        subprocess.run(install_line, check=False, **quiet)
        if step.is_there():
            print(f"installed {step.name}")
            return
    print(f"note: {step.name} is not installed: {step.without}")
    print(f"  hint: sudo apt-get install {' '.join(step.packages)}")


def provide_npm(steps: tuple[NpmStep, ...]) -> None:
    """Install npm packages where there is npm; say what is missing where there is not."""
    if all(step.is_there() for step in steps):
        return
    # In one call: npm removes what another call has installed without saving it.
    wanted, npm, why = [f"{step.package}@{step.version}" for step in steps], shutil.which("npm"), "no npm"
    if npm:
        options = ["--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts"]
        print("npm install", *wanted, flush=True)
        try:
            subprocess.run([npm, "install", *options, *wanted], cwd=ROOT, capture_output=True, timeout=300)
        except (OSError, subprocess.TimeoutExpired) as error:
            why = str(error)
        else:
            why = "npm could not install it"
    for step in steps:
        if not step.is_there():
            print(f"note: {why}: {step.without}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
