"""Build wheel and source archive, and try the wheel in empty environments: alone, and with each extra.

    python scripts/check_wheels.py                    # the core, and every extra of a few megabytes
    python scripts/check_wheels.py --extras yaml,log  # the core and these
    python scripts/check_wheels.py --extras all       # every extra there is: gigabytes

In each environment: ``evenload doctor`` ends well and finds the extra, a first map gives its results, every
module that an install hint promises for that extra can be imported, and what the extra is for is done once.
"""

import argparse
import ast
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from collections import defaultdict
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
LARGE = {
    "adapters",
    "all",
    "datasets",
    "diffusion",
    "flower",
    "llm",
    "moe",
    "nf4",
    "ray",
    "sweeps",
    "torch",
    "triton",
    "vllm",
}
NEEDS_GPU_STACK = {"nf4", "vllm", "triton"}  # what imports them looks for CUDA's libraries

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
    "yaml": """
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
""",
    "pictures": """
import numpy, PIL.Image
from evenload.pipeline import read_picture
PIL.Image.fromarray(numpy.zeros((3, 4, 3), "uint8")).save("a.png")
assert read_picture("a.png").shape[:2] == (3, 4)
""",
    "kernels": """
from evenload.moe import rebalance_experts
print(rebalance_experts([[5.0, 1.0, 1.0, 1.0]], 6, 1, 1, 2).phy2log)
""",
    "log": """
import subprocess, sys
command = [sys.executable, "-m", "evenload", "merkle", "log", "--help"]
subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
from evenload.merkle import Log
""",
    "joblib": """
import joblib, math
import evenload.joblib
with joblib.parallel_config("evenload", devices="cpu*2"):
    assert joblib.Parallel()(joblib.delayed(math.sqrt)(n) for n in (1, 4)) == [1.0, 2.0]
""",
    "torch": "import torch\nassert torch.ones(2).sum() == 2\nfrom evenload.clients import train\n",
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--extras", help="these, with commas between; 'all': every one, also of gigabytes")
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
        wheel, archive = build(folder, options.out)
        faults = [f"{wheel.name}: {fault}" for fault in wrong_files(wheel)]
        faults += [f"{archive.name}: {fault}" for fault in wrong_sources(archive)]
        for name in ["", *filter(None, wanted)]:
            faults += try_extra(name, wheel, folder)
    for fault in faults:
        print("FAULT", fault, file=sys.stderr)
    return 1 if faults else 0


def extras() -> dict[str, list[str]]:
    """What each extra asks for, by pyproject.toml."""
    facts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return facts["project"]["optional-dependencies"]


def build(folder: Path, out: Path) -> tuple[Path, Path]:
    """Build the source archive, and the wheel from it: what is not in the archive is not in the wheel."""
    python = environment(folder / "builder")
    pip(python, "build>=1.2")
    out.mkdir(parents=True, exist_ok=True)
    for old in [*out.glob("evenload-*.whl"), *out.glob("evenload-*.tar.gz")]:
        old.unlink()
    subprocess.run([python, "-m", "build", "--outdir", out, ROOT], check=True, stdout=subprocess.DEVNULL)
    (wheel,), (archive,) = out.glob("evenload-*.whl"), out.glob("evenload-*.tar.gz")
    for path in (archive, wheel):
        print(f"{path.name}  {path.stat().st_size:,} bytes")
    return wheel, archive


def wrong_files(wheel: Path) -> list[str]:
    """What the wheel lacks of src/evenload, and what it has besides it and its own metadata."""
    with zipfile.ZipFile(wheel) as held:
        inside = {name for name in held.namelist() if ".dist-info/" not in name}
    expected = {path.as_posix() for path in source_files()}
    return [f"lacks {name}" for name in sorted(expected - inside)] + [
        f"has {name}, which is not in src" for name in sorted(inside - expected)
    ]


def source_files() -> list[PurePosixPath]:
    """Every file below src/evenload that git would keep, relative to src."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "src/evenload"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.splitlines()  # fmt: skip
    return [PurePosixPath(name).relative_to("src") for name in listed if (ROOT / name).is_file()]


def wrong_sources(archive: Path) -> list[str]:
    """What a builder from source needs and the archive lacks."""
    with tarfile.open(archive) as held:
        inside = {PurePosixPath(*PurePosixPath(name).parts[1:]).as_posix() for name in held.getnames()}
    expected = {f"src/{path}" for path in source_files()}
    expected |= {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md", "CITATION.cff"}
    return [f"lacks {name}" for name in sorted(expected - inside)]


def try_extra(name: str, wheel: Path, folder: Path) -> list[str]:
    """Faults of the wheel with the extra ``name`` ("": alone) in an environment that has nothing else."""
    shown = name or "core alone"
    print(f"{shown}: ", end="", flush=True)
    python = environment(folder / f"with-{name}")
    try:
        if name in torch_extras():
            pip(python, pinned("torch"))
        pip(python, f"{wheel}[{name}]" if name else str(wheel))
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
    if name not in NEEDS_GPU_STACK:
        for module in sorted(promised().get(name, ())):
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
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
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


def pip(python: Path, *packages: str) -> None:
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
    subprocess.run(command, check=True)


def ask(python: Path, work: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        [python, *arguments], cwd=work, env=clean, capture_output=True, text=True, timeout=600
    )


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1][:300] if lines else "without a word"


if __name__ == "__main__":
    sys.exit(main())
