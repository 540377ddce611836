"""Tutorials: each notebook is its page's, shows what a reader may see, and its first cell runs anywhere."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from loaded_programs import load

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "tutorials"
WIDEST = 88  # letters of a line of code that the site shows on a window of 1280 pixels
PAGES = sorted(page for page in FOLDER.glob("*.md") if page.stem != "index")


@pytest.fixture(scope="module")
def notebooks():
    return load("scripts/notebooks.py")


def cells_of(page: Path, kind: str) -> list[dict]:
    found = json.loads(page.with_suffix(".ipynb").read_text(encoding="utf-8"))["cells"]
    return [cell for cell in found if cell["cell_type"] == kind]


def test_there_is_a_notebook_of_each_page_and_no_other():
    assert len(PAGES) >= 5
    assert {page.stem for page in PAGES} == {path.stem for path in FOLDER.glob("*.ipynb")}
    index = (FOLDER / "index.md").read_text(encoding="utf-8")
    assert all(f"({page.name})" in index for page in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_notebook_is_its_pages(notebooks, page):
    made = notebooks.notebook_of(page.read_text(encoding="utf-8"))
    assert page.with_suffix(".ipynb").read_text(encoding="utf-8") == made, "make tutorials"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_notebook_shows_outputs_and_nothing_of_the_machine_that_made_it(page):
    text = page.with_suffix(".ipynb").read_text(encoding="utf-8")
    assert not re.search(r"/(tmp|home|root|work|Users|var)/", text)
    assert "<!--" not in text
    outputs = [output for cell in cells_of(page, "code") for output in cell["outputs"]]
    assert outputs
    printed = "".join(line for output in outputs for line in output.get("text", []))
    patterns = re.compile(r"^\.\.\.$|\.\.\. s\b", re.MULTILINE)  # what stands for anything, shown to a reader
    assert not patterns.search(printed)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_is_read_without_scrolling(page):
    wide = [
        line.rstrip()
        for cell in cells_of(page, "code")[1:]
        for line in cell["source"]
        if len(line.rstrip()) > WIDEST
    ]
    assert wide == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_notebook_links_to_is_there(notebooks, page):
    for cell in cells_of(page, "markdown"):
        for target in re.findall(r"\]\(([^)#]+)", "".join(cell["source"])):
            assert target.startswith("https://"), target
            if target.startswith(notebooks.SITE):
                assert (FOLDER / target.removeprefix(notebooks.SITE)).is_file(), target
    badge = f"https://colab.research.google.com/github/evenload/evenload/blob/main/docs/tutorials/{page.stem}.ipynb"
    assert f"[![Open in Colab](../pictures/open-in-colab.svg)]({badge})" in page.read_text(encoding="utf-8")


def test_the_first_cell_leaves_what_is_there_alone(tmp_path):
    for page in PAGES:
        first = "".join(cells_of(page, "code")[0]["source"])
        assert "evenload[" in first
    check = "import shutil; assert shutil.which(os.path.basename(sys.executable)); print(os.listdir('.'))"
    done = subprocess.run(
        [sys.executable, "-c", f"{first}\n{check}"], env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    assert done.stdout == "[]\n"


def test_blocks_become_cells(notebooks):
    page = """# A page
<!-- needs: evenload[jobs] -->

[![Open in Colab](x.svg)](https://x) and [another](other.md), [a part](#part)

```yaml
# a.yaml
one: 1
```

```sh
$ cat a.yaml
```
<!-- like: one: ... -->
```text
one: 1
```

```python
print("a")
```

Last words.
"""
    found = json.loads(notebooks.notebook_of(page))["cells"]
    sources = ["".join(cell["source"]) for cell in found]
    assert [cell["cell_type"] for cell in found] == ["markdown", "code", "code", "code", "code", "markdown"]
    assert "needs" not in sources[0]
    assert "[Open in Colab](https://x)" in sources[0]
    assert f"]({notebooks.SITE}other.md)" in sources[0]
    assert sources[2:] == ["%%writefile a.yaml\none: 1", "%%bash\ncat a.yaml", 'print("a")', "Last words."]
    assert found[3]["outputs"] == [{"name": "stdout", "output_type": "stream", "text": ["one: 1"]}]


def test_a_run_writes_examples_and_pictures_again(notebooks, tmp_path, monkeypatch):
    monkeypatch.setattr(notebooks, "FOLDER", tmp_path / "tutorials")
    page = """# A page

```python
class Drawing:
    def _repr_html_(self):
        return '<b>x</b><svg viewBox="0 0 10 20" width="10"><rect width="3" height="4"/></svg>'

print("new \\\\1")
Drawing()
```
<!-- like: new ... -->
```text
old
```

![a drawing](../pictures/tutorials/drawing.svg)

```sh
echo kept
```
```text
not an example
```
"""
    fresh = notebooks.run(page)
    assert fresh == page.replace("old\n", "new \\1\n")
    picture = tmp_path / "pictures" / "tutorials" / "drawing.svg"
    tree = ElementTree.fromstring(picture.read_text(encoding="utf-8"))
    assert tree.get("viewBox") == "-16 -16 42 52"
    with pytest.raises(SystemExit, match="exit code 1"):
        notebooks.run("```sh\nexit 3\n```\n")


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_cell_runs_and_draws_its_picture(notebooks, page, tmp_path, monkeypatch):
    monkeypatch.setattr(notebooks, "FOLDER", tmp_path / "tutorials")
    notebooks.run(page.read_text(encoding="utf-8"))
    shown = re.findall(r"\.\./pictures/tutorials/([\w-]+\.\w+)", page.read_text(encoding="utf-8"))
    assert all((tmp_path / "pictures" / "tutorials" / name).stat().st_size > 300 for name in shown)
