"""Every extra brings what hints promise, and what is asked for is said why."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from loaded_programs import load

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def check_wheels():
    return load("scripts/check_wheels.py")


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
    assert len(promised) > 10
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
