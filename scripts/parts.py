"""The distributions that this tree is published as: what is in each, and how they are built.

    python scripts/parts.py OUT     # a wheel and a source archive of each part, in the folder OUT

One tree, one version, several wheels: ``packages/parts.toml`` says which files belong to which part, and
``evenload`` has all others. A part is built from a folder that has its own files and metadata only, so its
source archive is whole, too. Needs hatchling.
"""

import argparse
import json
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WHOLE = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
VERSION: str = runpy.run_path(str(ROOT / "src" / "evenload" / "_version.py"))["__version__"]
COMMON = ("requires-python", "license", "license-files", "authors", "keywords", "classifiers", "urls")


@dataclass(frozen=True)
class Part:
    """A distribution, as packages/parts.toml says; without ``files`` it has all that no other part has."""

    name: str
    summary: str
    files: list[str] = field(default_factory=list)
    needs: list[str] = field(default_factory=list)
    requires: list[str] = field(default_factory=list)
    extra: str = ""
    plugins: list[str] = field(default_factory=list)


def parts() -> dict[str, Part]:
    """All parts by name, ``evenload`` last."""
    listed = tomllib.loads((ROOT / "packages" / "parts.toml").read_text(encoding="utf-8"))
    found = {name: Part(name, **facts) for name, facts in listed.items()}
    core = Part("evenload", WHOLE["description"], needs=["evenload-base"], requires=WHOLE["dependencies"])
    return found | {core.name: core}


def source_files() -> list[str]:
    """Every file below src/evenload that git would keep, relative to it."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "src/evenload"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.splitlines()  # fmt: skip
    return [name.removeprefix("src/evenload/") for name in listed if (ROOT / name).is_file()]


def owner(file: str, known: dict[str, Part]) -> str:
    """The part that has ``file``, a path relative to src/evenload: the longest entry of ``files`` decides."""
    entries = [
        (len(entry), part.name) for part in known.values() for entry in part.files if is_in(file, entry)
    ]
    return max(entries, default=(0, "evenload"))[1]


def is_in(file: str, entry: str) -> bool:
    return file == entry or file.startswith(f"{entry}/")


def with_needs(name: str, known: dict[str, Part]) -> list[str]:
    """The part and every part that it needs, each once, what is needed first."""
    found: dict[str, None] = {}
    for needed in known[name].needs:
        found |= dict.fromkeys(with_needs(needed, known))
    return [*found, name]


def ranges() -> dict[str, str]:
    """Each package that pyproject.toml asks for, with the range of versions that it names."""
    lines = [
        *WHOLE["dependencies"],
        *(line for extra in WHOLE["optional-dependencies"].values() for line in extra),
    ]
    return {re.match(r"[A-Za-z0-9._-]+", line)[0]: line for line in lines}


def metadata(part: Part, known: dict[str, Part]) -> dict[str, Any]:
    """The table ``project`` of a part's own pyproject.toml."""
    named = ranges()
    facts = {"name": part.name, "version": VERSION, "description": part.summary, "readme": "README.md"}
    facts |= {key: WHOLE[key] for key in COMMON}
    facts["dependencies"] = [named.get(package, package) for package in part.requires]
    facts["dependencies"] += [f"{need}=={VERSION}" for need in part.needs]
    extras: dict[str, list[str]] = WHOLE["optional-dependencies"]
    if part.name != "evenload":
        facts["optional-dependencies"] = {"all": extras[part.extra]} if part.extra else {}
        facts["entry-points"] = {group: WHOLE["entry-points"][group] for group in part.plugins}
        return facts
    brought = {other.extra: f"{other.name}=={VERSION}" for other in known.values() if other.extra}
    moved = {group for other in known.values() for group in other.plugins}
    facts["optional-dependencies"] = {
        name: [*([brought[name]] if name in brought else []), *lines] for name, lines in extras.items()
    }
    facts["scripts"] = WHOLE["scripts"]
    facts["entry-points"] = {
        group: names for group, names in WHOLE["entry-points"].items() if group not in moved
    }
    return facts


def toml(value: Any) -> str:
    """Text, numbers, lists and tables as TOML, tables in one line each."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {toml(held)}" for key, held in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def stage(part: Part, known: dict[str, Part], folder: Path) -> None:
    """Write everything that ``part`` is built from into ``folder``."""
    for file in source_files():
        if owner(file, known) == part.name:
            target = folder / "src" / "evenload" / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / "src" / "evenload" / file, target)
    for name in ("LICENSE", "CHANGELOG.md", "SECURITY.md", "CITATION.cff"):
        shutil.copyfile(ROOT / name, folder / name)
    page = ROOT / ("README.md" if part.name == "evenload" else f"packages/{part.name}/README.md")
    shutil.copyfile(page, folder / "README.md")
    lines = [
        "[build-system]",
        'requires = ["hatchling>=1.27"]',
        'build-backend = "hatchling.build"',
        "",
        "[project]",
    ]
    lines += [f"{key} = {toml(value)}" for key, value in metadata(part, known).items()]
    lines += ["", "[tool.hatch.build.targets.wheel]", 'packages = ["src/evenload"]']
    (folder / "pyproject.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def example(name: str) -> str:
    """The Python program in the README of a part."""
    page = (ROOT / "packages" / name / "README.md").read_text(encoding="utf-8")
    return page.split("```python\n")[1].split("```")[0]


def build(names: list[str], out: Path, targets: str = "wheel,sdist") -> None:
    """Build the archives of the named parts into ``out``."""
    known = parts()
    for name in names:
        with tempfile.TemporaryDirectory() as text:
            folder = Path(text)
            stage(known[name], known, folder)
            kinds = [word for target in targets.split(",") for word in ("-t", target)]
            command = [sys.executable, "-m", "hatchling", "build", *kinds, "-d", str(out.resolve())]
            subprocess.run(command, cwd=folder, check=True, capture_output=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="the folder for the archives")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    build(list(parts()), out)
    for path in sorted(out.glob(f"evenload*-{VERSION}*")):
        print(f"{path.name}  {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
