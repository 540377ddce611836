"""The way in stays true: what docs/design.md, the glossary and the pages name is there in the code."""

import ast
import functools
import re
import tomllib
from pathlib import Path

from parsed_sources import ROOT, SOURCE, nodes_of, text_of, tree_of

DESIGN = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
HOP = re.compile(r"`([\w/]+\.py)`: `(\w+(?:\.\w+)?)`")
NAMED = r"(?<![\w/.])((?:benchmarks|examples|scripts|tests)/[\w/-]+\.(?:py|yaml|json))\b"
FOLDERS = ("", "src/evenload/")  # what a path in a page may be relative to


def sections(text: str) -> dict[str, str]:
    """Each heading of the second or third level with the text below it."""
    parts = re.split(r"^###? (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@functools.cache
def code() -> str:
    """All of the package."""
    return "\n".join(text_of(path) for path in sorted(SOURCE.rglob("*.py")))


def definitions(path: Path) -> set[str]:
    """Functions, classes and ``Class.method`` that a file defines."""
    found = set()
    for node in tree_of(path).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return found


def house() -> dict[str, list[str]]:
    """Each folder of the table in "The house", with its rooms in the order given."""
    rows = re.findall(r"^\| (`.+?) \|.*\|([^|]*)\|$", sections(DESIGN)["The house"], re.MULTILINE)
    return {
        folder: re.findall(r"`([\w/]+)`", rooms)
        for folders, rooms in rows
        for folder in re.findall(r"`(\w+)`", folders)
    }


def levels_of(container: str) -> dict[str, int]:
    """How far from the top import-linter has each module and room of ``container``; {} without a contract."""
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for contract in configuration["tool"]["importlinter"]["contracts"]:
        if contract.get("containers") == [container]:
            return {
                name: level
                for level, layer in enumerate(contract["layers"])
                for name in re.findall(r"\w+", layer)
            }
    return {}


def rooms_of(folder: Path) -> set[str]:
    """Packages in ``folder``, at any depth, as paths below it."""
    return {str(init.parent.relative_to(folder)) for init in folder.glob("*/**/__init__.py")}


# --- docs/design.md -------------------------------------------------------------------------------


def test_every_hop_exists() -> None:
    hops = sorted(set(HOP.findall(DESIGN)))
    assert [file for file, _ in hops if not (SOURCE / file).is_file()] == []
    assert [(file, name) for file, name in hops if name not in definitions(SOURCE / file)] == []


def test_five_lives_are_told() -> None:
    lives = {title: text for title, text in sections(DESIGN).items() if title.startswith("The life of ")}
    assert len(lives) == 5
    for title, text in lives.items():
        steps = re.findall(r"^\d+\. (.+)$", text, re.MULTILINE)
        assert 6 <= len(steps) <= 14, title
        assert [step for step in steps if not HOP.match(step)] == []


def test_the_reading_path_is_there() -> None:
    stops = re.findall(
        r"^\d+\. `([\w/]+\.py)` \((\d+) min\)", sections(DESIGN)["An hour to know evenload"], re.MULTILINE
    )
    assert len({file for file, _ in stops}) == 10
    assert [file for file, _ in stops if not (SOURCE / file).is_file()] == []
    assert 45 <= sum(int(minutes) for _, minutes in stops) <= 60


def test_the_house_has_every_folder_and_room() -> None:
    named = house()
    packages = {init.parent.name for init in SOURCE.glob("*/__init__.py")}
    modules = {path.stem for path in SOURCE.glob("*.py")} - {"__init__", "__main__", "_version"}
    assert set(named) == packages | modules
    for folder, rooms in named.items():
        assert set(rooms) == rooms_of(SOURCE / folder), folder


def test_the_house_is_in_the_order_of_its_layers() -> None:
    levels = levels_of("evenload")
    assert list(house()) == sorted(house(), key=levels.__getitem__)
    for folder, rooms in house().items():
        inside = levels_of(f"evenload.{folder}")
        own = [inside[room] for room in rooms if room in inside]
        assert own == sorted(own), folder


def test_paths_of_the_design_exist() -> None:
    named = re.findall(r"`([a-z_]+(?:/[a-z_]+)+(?:\.py)?)/?`", DESIGN.partition("## The house")[2])
    paths = [path for path in named if path.partition("/")[0] in house()]
    assert len(paths) > 20
    assert [path for path in paths if not (SOURCE / path).exists()] == []


def test_tables_that_a_part_is_added_to_are_where_contributing_says() -> None:
    recipes = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Adding a part")[2]
    n_tables = 0
    for step in re.split(r"^\d\. ", recipes, flags=re.MULTILINE):
        files = [SOURCE / name for name in re.findall(r"`([\w/]+\.py)`", step) if "NAME" not in name]
        tables = set(re.findall(r"`(_?[A-Z][A-Z_]{3,})`", step)) - {"NAME"}
        n_tables += len(tables)
        said = "\n".join(file.read_text(encoding="utf-8") for file in files if file.is_file())
        assert [table for table in tables if not re.search(rf"^{table}\b.* = ", said, re.MULTILINE)] == []
    assert n_tables >= 6


# --- words ----------------------------------------------------------------------------------------


def test_the_glossary_has_few_words_that_the_code_uses() -> None:
    page = (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
    words = re.findall(r"^\| \*\*(.+?)\*\* \|", page, re.MULTILINE)
    assert 0 < len(words) <= 40
    assert words == sorted(set(words))
    assert [word for word in words if not re.search(rf"\b{word}s?\b", code(), re.IGNORECASE)] == []


# --- names in the pages ---------------------------------------------------------------------------


def resolves(dotted: str) -> bool:
    """Whether ``dotted`` is a module, what a module defines or hands on, or a member of a class in it."""
    place, names = ROOT / "src", dotted.split(".")
    while names and (place / names[0]).is_dir():
        place /= names.pop(0)
    if names and (place / f"{names[0]}.py").is_file():
        place /= f"{names.pop(0)}.py"
    if not names:
        return True
    path = place if place.is_file() else place / "__init__.py"
    handed_on = {  # imported, assigned, or in the table of names that are imported when asked for
        found
        for node in nodes_of(path)
        for found in (getattr(node, "id", None), getattr(node, "name", None), getattr(node, "value", None))
        if isinstance(found, str)
    }
    return ".".join(names) in definitions(path) or (len(names) == 1 and names[0] in handed_on)


def test_names_in_pages_resolve() -> None:
    for page in PAGES:
        dotted = set(re.findall(r"(?<![\w/.-])evenload(?:\.\w+)+", page.read_text(encoding="utf-8")))
        # A file's name, or an attribute of a span, stands in the code as a string.
        unknown = [name for name in sorted(dotted) if not resolves(name)]
        lost = [name for name in unknown if not re.search(rf"[\"/]{re.escape(name)}\b", code())]
        assert lost == [], page


def test_files_that_pages_name_exist() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        named = set(re.findall(r"`((?:[\w-]+/)+[\w-]+\.py)\b", text))
        named |= set(re.findall(NAMED, text))
        found = {one for one in named for root in FOLDERS if (ROOT / root / one).exists()}
        assert {one for one in named - found if "NAME" not in one} == set(), page
