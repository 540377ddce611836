"""What is published is whole: the wheel has every file, and every extra brings what hints promise."""

import importlib.util
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def check_wheels():
    spec = importlib.util.spec_from_file_location("check_wheels", ROOT / "scripts" / "check_wheels.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel of this tree, by the build backend of this environment: nothing is fetched."""
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling is not installed, so no wheel is built (make test installs it)")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)
    (built,) = folder.glob("*.whl")
    return built


def test_every_file_of_the_package_is_in_the_wheel_and_nothing_else(check_wheels, wheel):
    assert check_wheels.wrong_files(wheel) == []
    names = zipfile.ZipFile(wheel).namelist()
    for needed in ("evenload/py.typed", "evenload/report/assets/page.html"):
        assert needed in names
    assert any(name.endswith(".o") for name in names)


def test_a_file_that_is_missing_or_strange_is_named(check_wheels, wheel, tmp_path):
    spoilt = tmp_path / "spoilt.whl"
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(spoilt, "w") as other:
        for name in whole.namelist():
            if name != "evenload/py.typed":
                other.writestr(name, "")
        other.writestr("evenload/left_over.txt", "")
    assert check_wheels.wrong_files(spoilt) == [
        "lacks evenload/py.typed",
        "has evenload/left_over.txt, which is not in src",
    ]


def test_the_core_alone_is_imported_from_the_wheel(wheel, tmp_path):
    """With only the four packages that the core names, reached through links: no site-packages."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    for package in ("numpy", "click", "cloudpickle", "psutil"):
        home = Path(importlib.util.find_spec(package).origin).parent
        (tmp_path / package).symlink_to(home)
        if (libraries := home.with_name(f"{package}.libs")).exists():
            (tmp_path / libraries.name).symlink_to(libraries)
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import evenload\n"
        "for name in evenload.__all__: getattr(evenload, name)\n"
        "assert list(evenload.map(abs, [-1, 2], backend='inline', devices='cpu')) == [1, 2]\n"
        "from evenload.cli import main\n"
        "from evenload.report.page import *\n"
        "print(evenload.__file__)\n"
    )
    isolated = [sys.executable, "-I", "-S", "-c", program]
    done = subprocess.run(isolated, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "evenload" / "__init__.py")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def brought_by(requirements: list[str]) -> set[str]:
    """The distributions that ``requirements`` bring, with what they need themselves where it is known."""
    found, waiting = set(), list(requirements)
    while waiting:
        requirement = waiting.pop()
        name = normal(re.match(r"[A-Za-z0-9._-]+", requirement)[0])
        if name in found or "extra ==" in requirement:
            continue
        found.add(name)
        try:
            waiting += metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
    return found


def test_every_install_hint_names_an_extra_that_brings_the_module(check_wheels):
    """``require("bitsandbytes", extra="diffusion")`` sent people to an extra without it."""
    known, homes = check_wheels.extras(), metadata.packages_distributions()
    core = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    promised = check_wheels.promised()
    assert len(promised) > 15
    wrong = []
    for extra, modules in promised.items():
        assert extra in known, f"a hint names the extra {extra}, which does not exist"
        brought = brought_by([*known[extra], *core])
        for module in modules:
            top = module.split(".")[0]
            if not brought & {normal(home) for home in homes.get(top, [top])}:
                wrong.append(f"evenload[{extra}] does not bring {module}")
    assert wrong == []


def test_what_is_asked_of_every_package_is_said_why():
    """Each package of pyproject's extras has its line in docs/dependencies.md."""
    facts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8").lower()
    named = [need for needs in facts["optional-dependencies"].values() for need in needs] + facts[
        "dependencies"
    ]
    packages = {re.match(r"[A-Za-z0-9._-]+", need)[0].lower() for need in named} - {"evenload"}
    assert sorted(name for name in packages if name not in listed) == []
