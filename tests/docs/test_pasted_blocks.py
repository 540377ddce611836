"""A Python block of the README or a page runs when it is pasted alone, or says which names it goes on with.

The oracle is ruff, which says what a block uses and does not make. Each tutorial is one program, and says so.
"""

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from docs.test_documents import PAGES, ROOT, blocks_of

GOES_ON = re.compile(r"# goes on from above, which made (?P<names>[\w, ]+)\n")


def missing(bodies: list[str], folder: Path) -> dict[int, set[str]]:
    """The names that each block uses and does not make, by its place; no entry where there are none."""
    for at, body in enumerate(bodies):
        (folder / f"block{at}.py").write_text(body, encoding="utf-8")
    ruff = Path(sys.executable).parent / "ruff"
    command = [str(ruff), "check", "--isolated", "--select", "F821", "--output-format", "json", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    found: dict[int, set[str]] = defaultdict(set)
    for one in json.loads(done.stdout):
        at = int(Path(one["filename"]).stem.removeprefix("block"))
        found[at].add(one["message"].split("`")[1])
    return found


def said(body: str) -> set[str]:
    """The names that a block says it goes on with."""
    match = GOES_ON.match(body)
    return set(re.split(r", | and ", match["names"])) if match else set()


def test_what_a_block_lacks_is_found(tmp_path: Path) -> None:
    bodies = [
        "import evenload\nprint(evenload.map)\n",
        "print(evenload.map(fn))\n",
        "def f():\n    return torch\n",
    ]
    assert missing(bodies, tmp_path) == {1: {"evenload", "fn"}, 2: {"torch"}}
    assert said("# goes on from above, which made a, b and c\nprint(a, b, c)\n") == {"a", "b", "c"}


def test_every_block_has_its_names_or_says_where_they_are_from(tmp_path: Path) -> None:
    pages = [page for page in PAGES if "tutorials" not in page.parts]
    blocks = [(page, b) for page in pages for b in blocks_of(page) if b.language == "python"]
    assert len(blocks) > 90
    lacks = missing([block.body for _, block in blocks], tmp_path)
    wrong = {
        f"{page.relative_to(ROOT)}:{block.line}": (lacks.get(at, set()), said(block.body))
        for at, (page, block) in enumerate(blocks)
        if lacks.get(at, set()) != said(block.body)
    }
    assert wrong == {}, "import it in the block, or begin with: # goes on from above, which made NAME"
    assert "one program" in (ROOT / "docs" / "tutorials" / "index.md").read_text(encoding="utf-8")
