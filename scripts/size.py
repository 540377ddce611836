"""Lines of each room against the committed budget, and what this change adds or takes away.

    python scripts/size.py                      # a table; exit code 1 where a room is above its budget
    python scripts/size.py --base origin/main   # the difference to another commit than HEAD
    python scripts/size.py --write              # make the budget what the rooms are now

A room is a folder below ``src/evenload``; its single modules are one room, ``evenload``. ``tests``,
``benchmarks`` and ``scripts`` are rooms, too. A part is a distribution of packages/parts.toml. Every line
of a Python file counts, docstrings and blank ones included. The budget, ``size-budget.toml``, may be raised:
in a commit that says why.
"""

import argparse
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUDGET = ROOT / "size-budget.toml"
SOURCE = "src/evenload/"
OUTSIDE = ("tests", "benchmarks", "scripts")
STEP = 50
GOALS = {"source": 92_000, "tests": 62_000, "benchmarks": 9_500}


def room_of(path: str) -> str | None:
    """The room that a file counts for; None if it counts for no room."""
    if not path.endswith(".py"):
        return None
    if path.startswith(SOURCE):
        folder, _, inside = path.removeprefix(SOURCE).partition("/")
        return folder if inside else "evenload"
    top = path.partition("/")[0]
    return top if top in OUTSIDE else None


def lines_now(root: Path = ROOT) -> Counter[str]:
    """The lines of each room in the working tree."""
    found: Counter[str] = Counter()
    for folder in ("src", *OUTSIDE):
        for path in (root / folder).rglob("*.py"):
            room = room_of(path.relative_to(root).as_posix())
            if room:
                found[room] += path.read_bytes().count(b"\n")
    return found


def lines_of_parts() -> Counter[str]:
    """The lines of each distribution."""
    import parts

    known, found = parts.parts(), Counter()
    for file in filter(lambda name: name.endswith(".py"), parts.source_files()):
        found[parts.owner(file, known)] += (ROOT / SOURCE / file).read_bytes().count(b"\n")
    return found


def change_since(base: str, root: Path = ROOT) -> Counter[str]:
    """Lines added less lines removed in each room since a commit; untracked files count as added."""
    found: Counter[str] = Counter()
    for row in _git(["diff", "--numstat", "--no-renames", base], root).splitlines():
        added, removed, path = row.split("\t")
        room = room_of(path)
        if room and added != "-":
            found[room] += int(added) - int(removed)
    for path in _git(["ls-files", "-z", "--others", "--exclude-standard"], root).split("\0"):
        room = room_of(path)
        if room:
            found[room] += (root / path).read_bytes().count(b"\n")
    return found


def budget(path: Path = BUDGET, table: str = "lines") -> dict[str, int]:
    """The lines that each room may have; with the table ``parts``, that each distribution may have."""
    return tomllib.loads(path.read_text(encoding="utf-8"))[table]


def faults(lines: dict[str, int], allowed: dict[str, int]) -> list[str]:
    """A sentence for each room that is above its budget, without one, or gone."""
    found = [
        f"{room} has {n:,} lines, and its budget is {allowed[room]:,}"
        for room, n in lines.items()
        if room in allowed and n > allowed[room]
    ]
    found += [f"{room} has no budget" for room in lines if room not in allowed]
    return found + [f"{room} has a budget and no files" for room in allowed if room not in lines]


def table(lines: dict[str, int], allowed: dict[str, int], change: dict[str, int]) -> str:
    """A row for each room, the largest first, and the sums beside their goals."""
    rows = [f"{'room':<14}{'lines':>9}{'budget':>9}{'change':>9}"]
    for room, n in sorted(lines.items(), key=lambda row: (row[0] in OUTSIDE, -row[1])):
        rows.append(f"{room:<14}{n:>9,}{allowed.get(room, 0):>9,}{change.get(room, 0):>+9,}")
    inside = sum(n for room, n in lines.items() if room not in OUTSIDE)
    sums = {"source": inside, **{room: lines.get(room, 0) for room in OUTSIDE}}
    rows += [f"{name}: {sums[name]:,} lines; the goal is {goal:,}" for name, goal in GOALS.items()]
    return "\n".join(rows)


def text_of(lines: dict[str, int], of_parts: dict[str, int]) -> str:
    """The budget file for rooms and parts of these lines, each rounded up to a whole ``STEP``."""
    tables = [
        "".join(f"{name} = {-(-n // STEP) * STEP}\n" for name, n in sorted(counted.items()))
        for counted in (lines, of_parts)
    ]
    heading = "# Lines that each room and each part may have: `make size` compares, CI fails above."
    return f"{heading}\n[lines]\n{tables[0]}\n[parts]\n{tables[1]}"


def _git(words: list[str], root: Path) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"git {' '.join(words)} failed: {done.stderr.strip()[:200]}")
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--base", default="HEAD", help="the commit that the change is counted from")
    parser.add_argument("--write", action="store_true", help="write the budget anew from what there is")
    asked = parser.parse_args()
    lines, of_parts = lines_now(), lines_of_parts()
    if asked.write:
        BUDGET.write_text(text_of(lines, of_parts), encoding="utf-8")
    allowed, allowed_parts = budget(), budget(table="parts")
    print(table(lines, allowed, change_since(asked.base)))
    print("".join(f"{name:<18}{n:>7,} of {allowed_parts.get(name, 0):,}\n" for name, n in of_parts.items()))
    wrong = faults(lines, allowed) + faults(of_parts, allowed_parts)
    if wrong:
        print("\n".join(["", *wrong]))
        print("Make the room smaller, or raise its line in size-budget.toml and say why.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
