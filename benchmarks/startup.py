"""What it costs to start: CPU milliseconds of imports, of ``evenload devices --json``, and of first answers.

    python benchmarks/startup.py [--runs 21]

Measured in a fresh environment that holds evenload and its core dependencies only, so that torch cannot be
imported; then with nvidia-ml-py and wgpu added. CPU time is user + system of a process and its children: what
else the machine does hardly counts. Each figure is the median of interleaved runs, beside bare Python's in
the same rounds. Exit code 1 if a limit is broken.

First answers are measured in this environment, whole processes with their imports: *cold* with no cache of
compiled code, *warm* with the cold one's cache, and *four at once* with no cache, where the CPU time is that
of all four together.
"""

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cpu_clock import ended_children_cpu_s
from record import record

CORE = ("evenload", "click", "psutil", "cloudpickle", "numpy", "numpy.libs")
DRIVERS = ("pynvml", "wgpu", "rendercanvas", "cffi", "_cffi_backend", "pycparser")
PLACED = "slots, loads = np.arange(40) % 32, np.arange(32.0) + 1"
ROUTED = "from evenload.balance.flow import route"
ANSWERS = {  # name: imports, the answer, most CPU milliseconds of a cold process
    "route": (ROUTED, "route(slots, np.arange(32), 8)", 3000),
    "route, speeds": (ROUTED, "route(slots, np.arange(32), 8, speeds=range(1, 9))", 3000),
    "route, even": (ROUTED, "route(slots, np.arange(32), 8, even=True)", 3000),
    "rebalance_experts": (
        "from evenload.moe import rebalance_experts", "rebalance_experts(loads[None], 40, 4, 2, 8)", 3000,
    ),
    "Planner.run": (
        "import torch\nfrom evenload.moe import Planner",
        "Planner(slots, 40, 32, 8).run(np.arange(256).reshape(64, 4) % 32)", 3000,
    ),
    "place": ("from evenload.moe import Fleet, place", "place(loads[None, None], Fleet((5,) * 8))", 6000),
    "a small key and a proof": (
        "from evenload.zk import Prover\nfrom evenload.zk.circuits import squaring_chain\n"
        "from evenload.zk.devsetup import dev_setup",
        "circuit, witness = squaring_chain(300)\n"
        "with Prover(dev_setup(circuit, seed='key')) as prover: prover.prove(witness)", 4000,
    ),
    "Merkle tree": (
        "from evenload.merkle import MerkleTree", "MerkleTree(np.zeros((1000, 32), np.uint8)).root", 2000,
    ),
}  # fmt: skip
MOST_LOADING_MS = 500  # of a warm process, in its first answer
LIMIT_MS = {
    "import evenload": 60,
    "evenload devices --json": 200,
    "the same, with wgpu and nvidia-ml-py": 200,
}


def environment(folder: Path, packages: tuple[str, ...]) -> Path:
    """A Python that can import ``packages`` and nothing else, by links to those of this interpreter."""
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    for package in packages:
        for source in sources(package):
            (site / source.name).symlink_to(source)
    return folder / "bin" / "python"


def sources(package: str) -> list[Path]:
    """The folder or file of a package; ``x.libs`` are the libraries that lie beside x."""
    if package.endswith(".libs"):
        beside = sources(package.removesuffix(".libs"))[0].with_name(package)
        return [beside] if beside.exists() else []
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        return []
    origin = Path(found.origin)
    return [origin.parent if origin.name == "__init__.py" else origin]


def cpu_ms(command: list[str | Path], cache: Path) -> float:
    """CPU milliseconds that ``command`` and its children took."""
    variables = {"PATH": os.environ["PATH"], "HOME": str(cache), "XDG_CACHE_HOME": str(cache)}
    before = ended_children_cpu_s()
    subprocess.run(command, env=variables, stdout=subprocess.DEVNULL, check=True)
    return 1000 * (ended_children_cpu_s() - before)


def measure(folder: Path, n_runs: int) -> dict[str, list[float]]:
    core, full = environment(folder / "core", CORE), environment(folder / "full", CORE + DRIVERS)
    devices = ["-m", "evenload", "devices", "--json"]
    commands = {
        "bare python": [core, "-c", "pass"],
        "import evenload": [core, "-c", "import evenload"],
        "evenload --help": [core, "-m", "evenload", "--help"],
        "evenload devices --json": [core, *devices],
        "the same, with wgpu and nvidia-ml-py": [full, *devices],
        "the same, first time after a boot": [full, *devices],
    }
    assert subprocess.run([core, "-c", "import torch"], stderr=subprocess.DEVNULL).returncode, (
        "torch must be absent"
    )
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(n_runs + 1):
        for name, command in commands.items():
            cache = folder / (f"cold{turn}" if "first time" in name else "cache")
            cache.mkdir(exist_ok=True)
            spent = cpu_ms(command, cache)
            if turn:  # the first round fills caches
                taken[name].append(spent)
    return taken


def first_answers(folder: Path, n_runs: int) -> list[dict[str, Any]]:
    """Rows of first answers. ``answer_ms`` is without imports, the most of four processes."""
    rows: list[dict[str, Any]] = []
    for name, (imports, answer, limit) in ANSWERS.items():
        code = (
            f"import time\nimport numpy as np\n{imports}\n{PLACED}\nstart = time.process_time()\n{answer}\n"
        )
        command = [sys.executable, "-c", f"{code}print(1000 * (time.process_time() - start))"]
        found: dict[str, list[tuple[float, float]]] = {"cold": [], "warm": [], "four at once": []}
        for turn in range(n_runs):
            for kind, cache in (("cold", "own"), ("warm", "own"), ("four at once", "shared")):
                n = 4 if kind == "four at once" else 1
                found[kind].append(answers_ms(command, folder / f"{name}-{turn}-{cache}", n))
        for kind, taken in found.items():
            row = row_of(f"{name}, {kind}", [whole for whole, _ in taken], limit if kind == "cold" else None)
            row["answer_ms"] = round(statistics.median(alone for _, alone in taken), 1)
            rows.append(row | {"answer_limit_ms": MOST_LOADING_MS if kind == "warm" else None})
    return rows


def row_of(what: str, taken_ms: Sequence[float], limit_ms: int | None) -> dict[str, Any]:
    row: dict[str, Any] = {"what": what, "cpu_ms": round(statistics.median(taken_ms), 1)}
    row |= {"least_ms": round(min(taken_ms), 1), "times_bare_python": None, "answer_ms": None}
    return row | {"limit_ms": limit_ms, "answer_limit_ms": None}


def answers_ms(command: list[str], cache: Path, n: int) -> tuple[float, float]:
    """CPU milliseconds of ``n`` processes together, and the most that one spent on its answer."""
    caches = {name: str(cache) for name in ("EVENLOAD_KERNEL_CACHE", "NUMBA_CACHE_DIR")}
    before = ended_children_cpu_s()
    started = [
        subprocess.Popen(command, env=os.environ | caches, stdout=subprocess.PIPE, text=True)
        for _ in range(n)
    ]
    answers = [process.communicate()[0] for process in started]
    return 1000 * (ended_children_cpu_s() - before), max(map(float, answers))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=21)
    n_runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        taken = measure(Path(folder), n_runs)
        answers = first_answers(Path(folder), max(1, n_runs // 4))
    rows = [row_of(name, values, LIMIT_MS.get(name)) for name, values in taken.items()]
    for row in rows:
        row["times_bare_python"] = round(row["cpu_ms"] / rows[0]["cpu_ms"], 1)
    rows += answers
    record("startup", rows, runs=n_runs)
    broken = [
        row["what"]
        for row in rows
        for limit, value in (("limit_ms", "cpu_ms"), ("answer_limit_ms", "answer_ms"))
        if row.get(limit) and row[value] > row[limit]
    ]
    if broken:
        print("over the limit:", ", ".join(broken), file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
