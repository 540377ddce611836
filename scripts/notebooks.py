"""Make docs/tutorials/NAME.ipynb of docs/tutorials/NAME.md: the page is the source, its blocks are the cells.

    python scripts/notebooks.py [--check | --run] [NAME ...]

Blocks of Python become cells, those of shell ``%%bash`` cells, ``# name.yaml`` blocks ``%%writefile`` cells.
A ``text`` block after a cell is its output, and so is a picture in ``docs/pictures/tutorials``.
``<!-- needs: evenload[torch] -->`` becomes a first cell that installs it where it is missing. ``--run`` runs
the cells first: it makes the pictures, and the outputs that are examples (those below
``<!-- like: ... -->``), again.
"""

import argparse
import ast
import base64
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "tutorials"
SITE = "https://github.com/evenload/evenload/blob/main/docs/tutorials/"
PART = re.compile(
    r"^```(?P<language>python|sh|yaml|text)\n(?P<body>.*?)^```\n"
    r"|^!\[[^\]]*\]\((?P<picture>\.\./pictures/tutorials/[^)]+)\)\n",
    re.MULTILINE | re.DOTALL,
)
COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)
NEEDS = re.compile(r"<!-- needs: (?P<what>[\w\[\],]+) -->")
BADGE = re.compile(r"\[!\[([^\]]*)\]\([^)]*\)\]")
PAGE_LINK = re.compile(r"\]\((?!https?:)(?P<target>[^)]+)\)")
INSTALL = """# Where evenload is missing (on Colab, say), this installs it. Files go into a new folder.
import importlib.util, os, subprocess, sys, tempfile

if importlib.util.find_spec("evenload") is None:
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "{what}"], check=True)
os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
os.chdir(tempfile.mkdtemp(prefix="evenload-"))
"""
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
MARK = "=== end of a cell ==="
TYPES = {".png": "image/png", ".svg": "image/svg+xml"}
CARD = '<rect x="-16" y="-16" width="100%" height="100%" fill="#ffffff" rx="6"/>'


@dataclass(frozen=True)
class Part:
    """A piece of a page: ``kind`` is words, python, sh, yaml, text (an output) or picture (its path)."""

    kind: str
    body: str
    is_example: bool = False


def parts_of(page: str) -> Iterator[Part]:
    at = 0
    for block in PART.finditer(page):
        words = page[at : block.start()]
        yield Part("words", words)
        if block["picture"]:
            yield Part("picture", block["picture"])
        else:
            yield Part(block["language"], block["body"], words.lstrip().startswith("<!-- like:"))
        at = block.end()
    yield Part("words", page[at:])


def notebook_of(page: str) -> str:
    """The notebook of a page, as JSON text that is the same whenever it is made."""
    cells: list[dict] = []
    for part in parts_of(page):
        if part.kind == "words":
            add_words(cells, COMMENT.sub("", part.body))
        elif part.kind == "text":
            cells[-1]["outputs"].append({"name": "stdout", "output_type": "stream", "text": lines(part.body)})
        elif part.kind == "picture":
            cells[-1]["outputs"].append(shown(FOLDER / part.body))
        else:
            add_code(cells, source_of(part))
    if needs := NEEDS.search(page):
        add_code(cells, INSTALL.format(what=needs["what"]))
        cells.insert(1, cells.pop())
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    found = {"cells": cells, "metadata": {"kernelspec": KERNEL}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def source_of(part: Part) -> str:
    if part.kind == "python":
        return part.body
    if part.kind == "sh":
        return "%%bash\n" + re.sub(r"^\$ ", "", part.body, flags=re.MULTILINE)
    name, _, rest = part.body.partition("\n")
    return f"%%writefile {name.removeprefix('# ')}\n{rest}"


def add_words(cells: list[dict], text: str) -> None:
    if text.strip():
        text = PAGE_LINK.sub(lambda link: f"]({SITE}{link['target']})", BADGE.sub(r"[\1]", text.strip()))
        cells.append({"cell_type": "markdown", "metadata": {}, "source": lines(text)})


def add_code(cells: list[dict], source: str) -> None:
    cells.append(
        {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": lines(source)}
    )


def shown(picture: Path) -> dict:
    """A picture as the value that a cell displays."""
    content = picture.read_bytes()
    text = base64.b64encode(content).decode() if picture.suffix == ".png" else content.decode()
    return {"output_type": "display_data", "metadata": {}, "data": {TYPES[picture.suffix]: text}}


def lines(text: str) -> list[str]:
    found = text.splitlines(keepends=True)
    return [*found[:-1], found[-1].removesuffix("\n")] if found else []


def run(page: str) -> str:
    """Run a page's cells in a new folder: writes its pictures, and returns it with new examples."""
    parts, pieces, targets = list(parts_of(page)), [], []
    for at, part in enumerate(parts):
        if part.kind in ("python", "sh", "yaml"):
            after = next((one for one in parts[at + 1 :] if one.kind not in ("words", "text")), None)
            picture = FOLDER / after.body if after and after.kind == "picture" else None
            pieces.append(program_of(part, picture) + f"\nprint({MARK!r}, flush=True)\n")
            targets.append(at)
    outputs = dict(zip(targets, printed("".join(pieces), len(pieces)), strict=True))
    cell, fresh = 0, []
    for at, part in enumerate(parts):
        cell = at if at in outputs else cell
        if part.kind != "words":
            fresh.append(outputs[cell] if part.is_example else part.body)
    bodies = iter(fresh)
    return PART.sub(lambda block: block[0].replace(block["body"] or block["picture"], next(bodies)), page)


def program_of(part: Part, picture: Path | None) -> str:
    """A cell as a piece of a program; the value of its last line goes to ``picture``."""
    if part.kind == "yaml":
        return f"open({part.body.splitlines()[0][2:]!r}, 'w').write({part.body!r})"
    if part.kind == "sh":
        source = source_of(part).partition("\n")[2]
        return f"__import__('subprocess').run(['bash', '-euc', {source!r}], check=True)"
    if picture is None:
        return part.body
    last = ast.parse(part.body).body[-1]
    before = part.body.splitlines()[: last.lineno - 1]
    value = ast.get_source_segment(part.body, last)
    return "\n".join([*before, f"__import__('notebooks').keep({value}, {str(picture)!r})"])


def keep(value: object, path: str) -> None:
    """Write the picture that a notebook would show for ``value``."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.suffix == ".png":
        target.write_bytes(value._repr_png_())
    else:
        target.write_text(standalone(value._repr_html_()), encoding="utf-8")


def standalone(html: str) -> str:
    """The first drawing in ``html`` as a file of its own, on a light card that any page can carry."""
    drawing = re.search(r"<svg viewBox=\"0 0 (\d+) (\d+)\"[^>]*>(.*?)</svg>", html, re.DOTALL)
    width, height = int(drawing[1]) + 32, int(drawing[2]) + 32
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-16 -16 {width} {height}" width="{width}" '
        f'font-family="system-ui, sans-serif" color="#1f2430">{CARD}{drawing[3]}</svg>\n'
    )


def printed(program: str, n_cells: int) -> list[str]:
    """What each cell prints."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    modules = os.pathsep.join(filter(None, [str(ROOT / "scripts"), os.environ.get("PYTHONPATH", "")]))
    settings = {"PATH": path, "PYTHONPATH": modules, "COLUMNS": "80", "NO_COLOR": "1", "PYTHONUTF8": "1"}
    with tempfile.TemporaryDirectory(prefix="evenload-") as folder:
        Path(folder, "cells.py").write_text(program, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "cells.py"], cwd=folder, env=os.environ | settings, text=True,
            stdout=subprocess.PIPE, timeout=1100,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"{done.stdout}\nexit code {done.returncode}")
        found = done.stdout.replace(folder, "").split(MARK + "\n")
    if len(found) != n_cells + 1:
        raise SystemExit(f"{len(found) - 1} of {n_cells} cells ended")
    return found[:-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="pages; by default all")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit code 1 if a notebook is stale"
    )
    parser.add_argument("--run", action="store_true", help="run the cells, and show what they give")
    given, stale = parser.parse_args(), []
    for page in sorted(FOLDER.glob("*.md")):
        if page.stem == "index" or (given.names and page.stem not in given.names):
            continue
        if given.run:
            page.write_text(run(page.read_text(encoding="utf-8")), encoding="utf-8")
        made, path = notebook_of(page.read_text(encoding="utf-8")), page.with_suffix(".ipynb")
        if not path.is_file() or path.read_text(encoding="utf-8") != made:
            stale.append(path.name)
            if not given.check:
                path.write_text(made, encoding="utf-8")
    print("\n".join(f"{'stale:' if given.check else 'wrote'} {name}" for name in stale))
    return 1 if stale and given.check else 0


if __name__ == "__main__":
    sys.exit(main())
