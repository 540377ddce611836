"""Build wheels and source archives, and try them in empty environments: parts alone, evenload with extras.

    python scripts/check_wheels.py                      # every part alone, and every extra of a few megabytes
    python scripts/check_wheels.py --extras jobs,audit  # the parts and these
    python scripts/check_wheels.py --extras all         # every extra there is: gigabytes
    python scripts/check_wheels.py --tests              # each part's own tests, too, with the part alone

In the environment of an extra: ``evenload doctor`` ends well and finds it, a first map gives its results,
every module that an install hint promises for that extra can be imported, and what the extra is for is done
once. In that of a part, which has no evenload: the example of its README runs.
"""

import argparse
import ast
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections import Counter, defaultdict
from pathlib import Path, PurePosixPath

import parts

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
LARGE = {"all", "clients", "flower", "gpu", "models", "moe", "ray", "torch"}
NEED_GPU_STACK = {"bitsandbytes", "triton", "vllm"}  # what imports them looks for CUDA's libraries
TESTS = {
    "evenload-base": ["tests/devices", "tests/native", "tests/events", "tests/test_errors.py"],
    "evenload-kernels": ["tests/gpu", "--ignore=tests/gpu/llvm/conv/test_pooling.py"],
    "evenload-moe": ["tests/moe", "tests/balance/flow", "--ignore=tests/moe/replay"],
    "evenload-clients": ["tests/clients"],
    "evenload-zk": [
        *("tests/merkle", "tests/zk", "--ignore=tests/merkle/log", "--ignore=tests/merkle/test_partition.py"),
        "--ignore=tests/zk/test_batch.py",
    ],
}
"""Of each part, but for those that need evenload's workers or pages, or packages that it can do without."""

FIRST_MAP = """
import evenload
assert list(evenload.map(len, ["one", "three", ""], devices="cpu*2")) == [3, 5, 0]
assert evenload.last_run() is not None
"""
USES = {
    "": """
import evenload
assert all(getattr(evenload, name) is not None for name in evenload.__all__)
""",
    "jobs": """
from evenload.pipeline.job.job_file import load_spec
open("stages.py", "w").write("class Twice:\\n    def __call__(self, inputs, item): return {'twice': 2}\\n")
open("rows.jsonl", "w").write('{"id": "a", "n": 1}\\n')
open("job.yaml", "w").write('''version: 1
job: {name: twice, inputs: {jsonl: rows.jsonl}}
devices: {use: cpu}
stages: [{name: twice, target: "stages.py:Twice", outputs: {twice: number}}]
''')
import subprocess, sys
subprocess.run([sys.executable, "-m", "evenload", "run", "job.yaml", "--no-progress"], check=True)
assert open("runs/twice/report.html").read()
import numpy, PIL.Image
from evenload.pipeline import read_picture
PIL.Image.fromarray(numpy.zeros((3, 4, 3), "uint8")).save("a.png")
assert read_picture("a.png").shape[:2] == (3, 4)
""",
    "moe": """
from evenload.moe import rebalance_experts
print(rebalance_experts([[5.0, 1.0, 1.0, 1.0]], 6, 1, 1, 2).phy2log)
""",
    "zk": """
import subprocess, sys
command = [sys.executable, "-m", "evenload", "merkle", "log", "--help"]
subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
from evenload.merkle import Log
""",
    "torch": "import torch\nassert torch.ones(2).sum() == 2\n",
    "clients": "from evenload.clients import train\n",
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--extras", help="these, with commas between; 'all': every one, also of gigabytes")
    parser.add_argument("--tests", action="store_true", help="run each part's tests with the part alone")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the archives go")
    options = parser.parse_args()
    known = extras()
    wanted = list(known) if options.extras == "all" else (options.extras or "").split(",")
    if not options.extras:
        wanted = [name for name in known if name not in LARGE]
    unknown = [name for name in wanted if name and name not in known]
    if unknown:
        print(f"error: there is no extra {', '.join(unknown)}\n  hint: {', '.join(known)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        wheels, archives = build(folder, options.out)
        faults = wrong_files(wheels) + wrong_sources(archives)
        for name in list(parts.parts())[:-1]:
            faults += try_part(name, options.out, folder, options.tests)
        for name in ["", *filter(None, wanted)]:
            faults += try_extra(name, options.out, folder)
    for fault in faults:
        print("FAULT", fault, file=sys.stderr)
    return 1 if faults else 0


def extras() -> dict[str, list[str]]:
    """What each extra asks for, by pyproject.toml."""
    return parts.WHOLE["optional-dependencies"]


def build(folder: Path, out: Path) -> tuple[list[Path], list[Path]]:
    """Build a wheel and a source archive of each part."""
    python = environment(folder / "builder")
    pip(python, "hatchling>=1.27")
    shutil.rmtree(out, ignore_errors=True)
    subprocess.run([python, ROOT / "scripts" / "parts.py", out], check=True)
    return sorted(out.glob("evenload*.whl")), sorted(out.glob("evenload*.tar.gz"))


def wrong_files(wheels: list[Path]) -> list[str]:
    """What the wheels lack of src/evenload, have twice, or have besides it and their own metadata."""
    inside: Counter[str] = Counter()
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as held:
            inside.update(name for name in held.namelist() if ".dist-info/" not in name)
    return differences(inside)


def differences(inside: Counter[str]) -> list[str]:
    expected = {f"evenload/{file}" for file in parts.source_files()}
    return (
        [f"no wheel or archive has {name}" for name in sorted(expected - inside.keys())]
        + [f"{name} is there {n} times" for name, n in sorted(inside.items()) if n > 1]
        + [f"{name} is there, and not in src" for name in sorted(inside.keys() - expected)]
    )


def wrong_sources(archives: list[Path]) -> list[str]:
    """What the source archives lack of src/evenload, or have twice."""
    inside: Counter[str] = Counter()
    for archive in archives:
        with tarfile.open(archive) as held:
            paths = [
                PurePosixPath(*PurePosixPath(member.name).parts[1:]) for member in held if member.isfile()
            ]
        inside.update(str(path.relative_to("src")) for path in paths if path.parts[0] == "src")
    return differences(inside)


def try_part(name: str, out: Path, folder: Path, with_tests: bool) -> list[str]:
    """Faults of a part in an environment that has only it and what it needs."""
    print(f"{name} alone: ", end="", flush=True)
    python, work = environment(folder / name), folder / f"work-{name}"
    work.mkdir()
    if "torch" in parts.parts()[name].requires:
        pip(python, pinned("torch"))
    pip(python, "--find-links", out, f"{name}=={parts.VERSION}")
    program = parts.example(name)
    (work / "example.py").write_text(program, encoding="utf-8")
    done = ask(python, work, "example.py")
    faults = (
        [f"{name}: its example ends with {done.returncode}: {last_line(done)}"] if done.returncode else []
    )
    if with_tests:
        pip(python, "pytest>=8.3", "pytest-timeout", "pytest-xdist", "hypothesis", "scipy", "scikit-learn")
        done = ask(python, ROOT, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS[name], limit_s=3600)
        print((done.stdout.strip().splitlines() or ["no word of pytest"])[-1], end="; ")
        faults += [f"{name}: its tests end with {done.returncode}"] if done.returncode else []
    print("; ".join(faults) or "ok", flush=True)
    return faults


def try_extra(name: str, out: Path, folder: Path) -> list[str]:
    """Faults of the wheel with the extra ``name`` ("": alone) in an environment that has nothing else."""
    shown = name or "core alone"
    print(f"{shown}: ", end="", flush=True)
    python = environment(folder / f"with-{name}")
    try:
        if name in torch_extras():
            pip(python, pinned("torch"))
        pip(
            python,
            "--find-links",
            out,
            f"evenload[{name}]=={parts.VERSION}" if name else f"evenload=={parts.VERSION}",
        )
    except subprocess.CalledProcessError:
        print("not installed")
        return [f"{shown}: pip could not install it"]
    faults = [f"{shown}: {fault}" for fault in wrong_answers(name, python, folder / f"work-{name}")]
    print("; ".join(faults) or "ok", flush=True)
    return faults


def wrong_answers(name: str, python: Path, work: Path) -> list[str]:
    """Faults of doctor, a first map, the modules that hints promise, and of what the extra is for."""
    work.mkdir()
    done = ask(python, work, "-m", "evenload", "doctor", "--json")
    if done.returncode:
        return [f"doctor ends with {done.returncode}: {last_line(done)}"]
    found = {extra["name"]: extra["is_usable"] for extra in json.loads(done.stdout)["extras"]}
    faults = [] if not name or name == "all" or found.get(name) else ["doctor does not find it"]
    programs = {"the first map": FIRST_MAP, "its use": USES.get(name, "")}
    for module in sorted(promised().get(name, ())):
        if module.split(".")[0] not in NEED_GPU_STACK:
            programs[f"import {module}"] = f"import {module}"
    for what, program in programs.items():
        (work / "program.py").write_text(program, encoding="utf-8")
        done = ask(python, work, "program.py")
        if done.returncode:
            faults.append(f"{what} ends with {done.returncode}: {last_line(done)}")
    return faults


def promised() -> dict[str, set[str]]:
    """The modules by extra that ``require(module, extra=...)`` in src says that the extra brings."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "require(" in text else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "require":
                named = [*node.args[:1], *(word.value for word in node.keywords if word.arg == "extra")]
                words = [part.value for part in named if isinstance(part, ast.Constant)]
                if len(words) == 2:
                    found[words[1]].add(words[0])
    return dict(found)


def torch_extras() -> set[str]:
    return {name for name, needs in extras().items() if any(need.startswith("torch") for need in needs)}


def pinned(package: str) -> str:
    """The version of ``package`` that constraints.txt names: a looser one may be gigabytes."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return next(line.strip() for line in lines if line.startswith(f"{package}=="))


def environment(folder: Path) -> Path:
    """The Python of a new, empty environment; packages come to it through this Python's pip."""
    venv.create(folder, with_pip=True)
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"


def pip(python: Path, *packages: str | Path) -> None:
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
    subprocess.run(command, check=True)


def ask(python: Path, work: Path, *arguments: str, limit_s: float = 600) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        [python, *arguments], cwd=work, env=clean, capture_output=True, text=True, timeout=limit_s
    )


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1][:300] if lines else "without a word"


if __name__ == "__main__":
    sys.exit(main())
