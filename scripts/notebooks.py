"""Make docs/tutorials/NAME.ipynb of docs/tutorials/NAME.md: the page is the source, its blocks are the cells.

    python scripts/notebooks.py [--check]

Blocks of Python become cells, those of shell cells of the ``%%bash`` kind, a ``text`` block after either its output.
``<!-- needs: evenload[torch] -->`` becomes a first cell that installs it where it is missing.
"""

import argparse
import json
import re
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "tutorials"
SITE = "https://github.com/evenload/evenload/blob/main/docs/tutorials/"
FENCE = re.compile(r"^```(?P<language>python|sh|text)\n(?P<body>.*?)^```\n", re.MULTILINE | re.DOTALL)
NEEDS = re.compile(r"<!-- needs: (?P<what>[\w\[\],]+) -->\n*")
PAGE_LINK = re.compile(r"\]\((?!https?:)(?P<target>[^)]+)\)")
INSTALL = """# Where evenload is missing (on Colab, say), this installs it.
import importlib.util, subprocess, sys

if importlib.util.find_spec("evenload") is None:
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "{what}"], check=True)
"""
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def notebook_of(page: str) -> str:
    """The notebook of a page, as JSON text that is the same whenever it is made."""
    needs = NEEDS.search(page)
    page = NEEDS.sub("", page)
    cells, at = [], 0
    for block in FENCE.finditer(page):
        add_text(cells, page[at : block.start()])
        if block["language"] == "text":
            cells[-1]["outputs"] = [{"name": "stdout", "output_type": "stream", "text": lines(block["body"])}]
        else:
            add_code(cells, block["body"] if block["language"] == "python" else "%%bash\n" + shell(block["body"]))
        at = block.end()
    add_text(cells, page[at:])
    if needs:
        install: list[dict] = []
        add_code(install, INSTALL.format(what=needs["what"]))
        cells[1:1] = install
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    found = {"cells": cells, "metadata": {"kernelspec": KERNEL}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def add_text(cells: list[dict], text: str) -> None:
    if text.strip():
        linked = PAGE_LINK.sub(lambda link: f"]({SITE}{link['target']})", text.strip() + "\n")
        cells.append({"cell_type": "markdown", "metadata": {}, "source": lines(linked)})


def add_code(cells: list[dict], source: str) -> None:
    cells.append(
        {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": lines(source)}
    )


def shell(body: str) -> str:
    """Without the prompts."""
    return re.sub(r"^\$ ", "", body, flags=re.MULTILINE)


def lines(text: str) -> list[str]:
    found = text.splitlines(keepends=True)
    return [*found[:-1], found[-1].removesuffix("\n")] if found else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a notebook is not its page's")
    given, stale = parser.parse_args(), []
    for page in sorted(FOLDER.glob("*.md")):
        if page.stem == "index":
            continue
        made, path = notebook_of(page.read_text(encoding="utf-8")), page.with_suffix(".ipynb")
        if not path.is_file() or path.read_text(encoding="utf-8") != made:
            stale.append(path.name)
            if not given.check:
                path.write_text(made, encoding="utf-8")
    print("\n".join(f"{'stale' if given.check else 'wrote'} {name}" for name in stale))
    return 1 if stale and given.check else 0


if __name__ == "__main__":
    sys.exit(main())
