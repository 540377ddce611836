"""The parts can be taken alone: whole, importing nothing that they do not name, saying what is absent.

The oracle is Python's own import system over unpacked wheels: this tree's folder is on no path.
"""

import functools
import hashlib
import importlib.util
import os
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from loaded_programs import load, loaded
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]

ONLY = """
import importlib, sys
from importlib.abc import MetaPathFinder
folders, allowed, program = sys.argv[1].split(":"), set(sys.argv[2].split(",")), sys.argv[3]
class Only(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.split(".")[0]
        if top not in allowed and top not in sys.stdlib_module_names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Only())
sys.path[:] = [*folders, *(path for path in sys.path if not path.endswith("/src"))]
exec(compile(program, "program", "exec"), {"__name__": "__main__"})
"""


parts = load("scripts/parts.py")
KNOWN = parts.parts()
ALONE = [name for name in KNOWN if name != "evenload"]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> dict[str, Path]:
    """The wheel of each part, built by the backend of this environment: nothing is fetched."""
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling is not installed, so no wheel is built (make test installs it)")
    folder = tmp_path_factory.mktemp("wheels")
    parts.build(list(KNOWN), folder, targets="wheel")
    return {path.name.split("-")[0].replace("_", "-"): path for path in folder.glob("*.whl")}


@pytest.fixture(scope="module")
def unpacked(wheels, tmp_path_factory) -> dict[str, Path]:
    folders = {name: tmp_path_factory.mktemp(name) for name in wheels}
    for name, wheel in wheels.items():
        zipfile.ZipFile(wheel).extractall(folders[name])
    return folders


distributions_by_module = functools.cache(metadata.packages_distributions)


def modules_of(packages: list[str]) -> set[str]:
    """The top-level modules that ``packages`` and what they need bring into this environment."""
    homes, found, waiting = distributions_by_module(), set(), list(packages)
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in found:
            continue
        found.add(name)
        for line in metadata.requires(name) or []:
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                waiting.append(needed.name)
    own = {top for top, names in homes.items() if {one.lower().replace("_", "-") for one in names} & found}
    return own | {top for top in homes if top.startswith("_") and top != "_evenload"}


def run_with(names: list[str], unpacked: dict[str, Path], program: str, cwd: Path):
    """Run ``program`` where only the parts ``names``, and the packages that they require, can be imported."""
    required = {package for name in names for package in KNOWN[name].requires}
    packages = [Requirement(line).name for line in required]
    folders = ":".join(str(unpacked[name]) for name in names)
    allowed = ",".join({"evenload", *modules_of(packages)})
    command = [sys.executable, "-c", ONLY, folders, allowed, program]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=400)


def test_every_file_is_in_one_wheel(wheels, tmp_path):
    check = load("scripts/check_wheels.py")
    assert check.wrong_files(list(wheels.values())) == []
    names = zipfile.ZipFile(wheels["evenload"]).namelist()
    assert "evenload/report/assets/page.html" in names
    assert any(name.endswith(".o") for name in zipfile.ZipFile(wheels["evenload-base"]).namelist())
    spoilt = tmp_path / "spoilt.whl"
    with zipfile.ZipFile(wheels["evenload-base"]) as whole, zipfile.ZipFile(spoilt, "w") as other:
        for name in whole.namelist():
            if name != "evenload/py.typed":
                other.writestr(name, "")
        other.writestr("evenload/left_over.txt", "")
        other.writestr("evenload/__init__.py", "")
    others = [wheel for name, wheel in wheels.items() if name != "evenload-base"]
    assert check.wrong_files([spoilt, *others]) == [
        "no wheel or archive has evenload/py.typed",
        "evenload/__init__.py is there 2 times",
        "evenload/left_over.txt is there, and not in src",
    ]


def test_the_core_alone_is_imported_from_its_wheels(unpacked, tmp_path):
    program = (
        "import evenload\n"
        "for name in evenload.__all__: getattr(evenload, name)\n"
        "assert list(evenload.map(abs, [-1, 2], backend='inline', devices='cpu')) == [1, 2]\n"
        "from evenload.cli import main\n"
        "from evenload.report.page import *\n"
        "print(evenload.__file__)\n"
    )
    done = run_with(["evenload-base", "evenload"], unpacked, program, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(unpacked["evenload"] / "evenload" / "__init__.py")


def test_no_part_is_above_its_budget():
    with loaded("scripts", "size") as (size,):  # which imports another script as it counts
        assert size.faults(size.lines_of_parts(), size.budget(table="parts")) == []


def test_rooms_say_the_part_that_has_them():
    from evenload._parts import ROOMS

    said = {room: name for name, rooms in ROOMS.items() for room in rooms.split()}
    for room, name in said.items():
        path = ROOT / "src" / "evenload" / room.replace(".", "/")
        assert path.is_dir() or path.with_suffix(".py").is_file(), room
        inside = [file for file in parts.source_files() if parts.is_in(file, room.replace(".", "/"))]
        for file in inside or [room.replace(".", "/") + ".py"]:
            deepest = max((r for r in said if f"{file[:-3]}/".startswith(r.replace(".", "/") + "/")), key=len)
            assert parts.owner(file, KNOWN) == said[deepest], file
        assert name in KNOWN
    entries = {entry.removesuffix(".py").replace("/", ".") for part in KNOWN.values() for entry in part.files}
    base = {entry.removesuffix(".py").replace("/", ".") for entry in KNOWN["evenload-base"].files}
    assert entries - base <= said.keys()


@pytest.mark.parametrize("name", ALONE)
def test_a_part_alone_runs_its_example_and_imports_only_what_it_names(name, unpacked, tmp_path):
    """Every public module, after the example; what lacks a package says which. Commands are of evenload."""
    folder = unpacked[name]
    modules = sorted(
        ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
        for path in (folder / "evenload").rglob("*.py")
        if ("cli" not in path.parts and not path.name.startswith("_")) or path.name == "__init__.py"
    )
    program = (
        f"{parts.example(name)}\n"
        "import importlib\n"
        "from evenload.errors import MissingExtra\n"
        "print('=== imports')\n"
        f"for module in {[one for one in modules if '.cli' not in one]!r}:\n"
        "    try: importlib.import_module(module)\n"
        "    except MissingExtra as error: assert error.hint.startswith('pip install')\n"
        "    except ModuleNotFoundError as error: print(module, error.name)\n"
    )
    done = run_with(parts.with_needs(name, KNOWN), unpacked, program, tmp_path)
    assert done.returncode == 0, done.stderr
    told, _, missed = done.stdout.partition("=== imports\n")
    assert told.strip()
    lacking = {line.split()[1].split(".")[0] for line in missed.splitlines()}
    extra = parts.WHOLE["optional-dependencies"].get(KNOWN[name].extra, [])
    offered = modules_of([Requirement(line).name for line in extra]) if lacking else set()
    assert lacking <= offered, missed


@pytest.mark.parametrize(
    ("statement", "brings"),
    [
        ("from evenload.moe import Planner", "evenload-moe"),
        ("import evenload.balance.flow", "evenload-moe"),
        ("import evenload; evenload.merkle", "evenload-zk"),
        ("from evenload.clients import train", "evenload-clients"),
    ],
)
def test_what_is_absent_says_what_to_install(statement, brings, unpacked, tmp_path):
    done = run_with(["evenload-base", "evenload"], unpacked, statement, tmp_path)
    assert done.returncode == 1
    assert f"pip install {brings}" in done.stderr.splitlines()[-1]


def test_parts_in_folders_of_their_own_are_found_by_workers_too(unpacked, tmp_path):
    """As after ``pip install --user`` of a part. The oracle is hashlib."""
    (tmp_path / "leaves.bin").write_bytes(bytes(range(64)))
    program = (
        "import sys\n"
        "if __name__ == '__main__':\n"
        "    sys.argv = 'evenload merkle root leaves.bin --devices cpu*2'.split()\n"
        "    from evenload.__main__ import run; run()\n"
    )
    (tmp_path / "program.py").write_text(program)
    names = ["evenload-base", "evenload", "evenload-kernels", "evenload-zk"]
    path = os.pathsep.join([*(str(unpacked[name]) for name in names), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "program.py"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=400,
    )
    leaves = [hashlib.sha256(b"\0" + bytes(range(k, k + 32))).digest() for k in (0, 32)]
    assert done.stdout.strip() == hashlib.sha256(b"\1" + b"".join(leaves)).hexdigest(), done.stderr


def test_a_command_of_an_absent_part_says_what_to_install(unpacked, tmp_path):
    program = "import sys; sys.argv = ['evenload', 'moe', 'place']; from evenload.__main__ import run; run()"
    done = run_with(["evenload-base", "evenload"], unpacked, program, tmp_path)
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    assert "hint: pip install evenload-moe" in done.stderr


def test_a_part_without_evenload_says_what_runs_workers(unpacked, tmp_path):
    program = "import evenload.merkle, evenload.executor"
    done = run_with(parts.with_needs("evenload-zk", KNOWN), unpacked, program, tmp_path)
    assert "pip install evenload" in done.stderr.splitlines()[-1]


def test_versions_of_the_parts_are_pinned_to_each_other(wheels):
    for name, wheel in wheels.items():
        with zipfile.ZipFile(wheel) as held:
            (path,) = [one for one in held.namelist() if one.endswith("METADATA")]
            lines = held.read(path).decode().splitlines()
        needed = [Requirement(line.split(": ")[1]) for line in lines if line.startswith("Requires-Dist")]
        siblings = [one for one in needed if one.name.startswith("evenload")]
        assert {str(one.specifier) for one in siblings} <= {f"=={parts.VERSION}"}
        always = {one.name for one in siblings if one.marker is None}
        assert always == set(KNOWN[name].needs)
