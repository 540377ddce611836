"""The site: a page of every result, and nothing loaded from elsewhere."""

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from html.parser import HTMLParser
from pathlib import Path

import pytest
from chromium import FLAGS
from loaded_programs import loaded

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def load_script():
    """A function that loads a script, beside which its own modules are found."""
    with ExitStack() as stack:

        def load(path):
            folder, _, name = path.removesuffix(".py").rpartition("/")
            return stack.enter_context(loaded(folder, name))[0]

        yield load


@pytest.fixture(scope="module")
def benchmark_page(load_script):
    return load_script("scripts/benchmark_page.py")


def test_every_result_has_its_table(benchmark_page):
    text = benchmark_page.page()
    results = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
    assert results
    for path in results:
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
        part = text.partition(f" {{#{path.stem}}}\n")[2].partition("\n### ")[0].partition("\n## ")[0]
        table = [line for line in part.splitlines() if line.startswith("|")]
        assert len(table) - 2 in (len(rows), len(rows[0]) - 1), path.name
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1, path.name


def test_every_result_answers_a_question_by_a_plot(benchmark_page, load_script):
    asked = benchmark_page.questions.QUESTIONS
    written = {name for one in load_script("benchmarks/run_all.py").BENCHMARKS for name in one.results}
    results = {path.stem: path for path in (ROOT / "benchmarks" / "results").glob("*.json")}
    lacking = sorted((written | set(results)) - set(asked))
    assert not lacking, f"say in benchmarks/questions.py which question each answers: {lacking}"
    for name, question in asked.items():
        assert question.door in benchmark_page.questions.DOORS, name
        if name not in results:
            continue
        rows = json.loads(results[name].read_text(encoding="utf-8"))["rows"]
        bars = question.bars(rows)
        assert bars, f"{name}: the plot of its question shows nothing of the result"
        assert len({bar for bar, _ in bars}) == len(bars), f"{name}: bars of one name"
    assert len({one.asks for one in asked.values()}) == len(asked)


def test_a_plot_says_all_of_it_in_words_and_in_lengths(benchmark_page):
    rows = [{"way": "evenload <b>", "s": 1.0}, {"way": "other", "s": 4.0}, {"way": "none", "s": None}]
    question = benchmark_page.questions.Question(
        "Jobs", "?", benchmark_page.questions.ByRow(("way",), "s", "s")
    )
    text = "\n".join(benchmark_page._plot(question, rows))
    assert re.findall(r'class="(\w+)" style="width: ([\d.]+)%', text) == [
        ("ours", "25.0"),
        ("theirs", "100.0"),
    ]
    assert "less is better" in text
    assert "<b>" not in text


def test_arguments_in_columns_become_a_list_and_prose_stays_prose(load_script):
    laid_out = load_script("scripts/reference_pages.py").laid_out
    assert laid_out("One line,\nand another.") == "<p>One line,\nand another.</p>"
    text = (
        "Of a pool:\nseed      a number, or\n          none at all\nn_items   how many\nRaises ConfigError."
    )
    assert re.sub(r"\s*\n\s*", "", laid_out(text)) == (
        '<p>Of a pool:</p><dl class="arguments"><dt>seed</dt><dd>a number, or none at all</dd>'
        "<dt>n_items</dt><dd>how many</dd></dl><p>Raises ConfigError.</p>"
    )
    assert laid_out("Error\n├── Other   one").startswith("<pre><code>Error\n├── Other   one")


def test_what_is_no_result_is_named(benchmark_page, tmp_path):
    for name, text in (
        ("a", "{half"),
        ("b", "[]"),
        ("c", '{"rows": []}'),
        ("d", '{"rows": [3], "machine": {}}'),
    ):
        (tmp_path / f"{name}.json").write_text(text)
    page = benchmark_page.page(tmp_path)
    assert page.count("is no result") == 4


class Loads(HTMLParser):
    """What a page loads by itself."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        loads = {"script": "src", "img": "src", "iframe": "src", "source": "src"}.get(tag)
        if tag == "link" and attrs.get("rel") in ("stylesheet", "preconnect", "preload", "icon", "prefetch"):
            loads = "href"
        if loads and attrs.get(loads):
            self.found.append(attrs[loads])


@pytest.fixture(scope="module")
def sight(load_script):
    pytest.importorskip("playwright")
    module = load_script("scripts/site_screenshots.py")
    module.FLAGS = FLAGS
    if module.chromium() is None:
        pytest.skip("no chromium on this machine")
    return module


FEW = """
INHERIT: {root}/mkdocs.yml
strict: false
docs_dir: {folder}/docs
hooks: [{root}/scripts/benchmark_page.py]
plugins: [search]
nav: [index.md, benchmarks.md]
validation: {{links: {{not_found: ignore, anchors: ignore}}, nav: {{omitted_files: ignore}}}}
"""


def test_pages_fit_the_window_and_can_be_read_light_dark_and_on_a_phone(sight, tmp_path):
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "index.md", tmp_path / "docs" / "index.md")
    for folder in ("assets", "pictures"):
        shutil.copytree(ROOT / "docs" / folder, tmp_path / "docs" / folder)
    (tmp_path / "mkdocs.yml").write_text(FEW.format(root=ROOT, folder=tmp_path))
    mkdocs(tmp_path, "--config-file", str(tmp_path / "mkdocs.yml"))
    assert sight.look_at(tmp_path / "site", ["", "benchmarks/"], list(sight.LOOKS)) == []


def test_what_is_wrong_with_a_page_is_found(sight, tmp_path):
    (tmp_path / "index.html").write_text(
        """<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,">
        <body style="margin: 0"><div class="md-container">
        <p style="color: #999; background: #fff">pale words</p>
        <div style="overflow-x: auto"><div style="width: 3000px">scrolls within itself</div></div>
        <div style="width: 3000px">what is wide is</div>
        <img src="nowhere.png" alt="nothing"><script>throw new Error("broken")</script></div>"""
    )
    wrong = sight.look_at(tmp_path, [""], ["light"])
    found = [next(word for word in KINDS if word in one) for one in wrong]
    assert sorted(set(found)) == sorted(KINDS), wrong
    assert not any("scrolls within itself" in one for one in wrong)


KINDS = (
    "contrast 2.85",
    "the page is 3000 px wide",
    "ends at 3000",
    "no such picture",
    "script: broken",
    "console: ",
)


def test_the_pictures_are_what_their_script_draws(load_script):
    script = load_script("scripts/docs_pictures.py")
    for name in ("timeline", "rounds"):
        drawing = script.PICTURES[name]()
        for suffix, look in script.LOOKS.items():
            text = (ROOT / "docs" / "pictures" / f"{name}{suffix}.svg").read_text(encoding="utf-8")
            assert text == drawing.written(look), "run python scripts/docs_pictures.py"
            assert not re.search(r"[{}]|https?://(?!www.w3.org/2000/svg)", text)
    for name in script.PICTURES:
        pages = [
            page
            for page in (ROOT / "docs").rglob("*.md")
            if f"pictures/{name}.svg" in page.read_text("utf-8")
        ]
        assert pages, f"no page shows {name}.svg"
        for page in pages:
            shown = re.findall(
                rf"!\[([^\]]*)\]\([./]*pictures/{name}(-dark)?\.svg#only-(light|dark)\)",
                page.read_text("utf-8"),
            )
            assert [(bool(words), dark, look) for words, dark, look in shown] == [
                (True, "", "light"),
                (True, "-dark", "dark"),
            ]


def mkdocs(site, *options):
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(site / "site"), *options]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, timeout=550)


PLANTED = """
INHERIT: {root}/mkdocs.yml
docs_dir: {folder}/docs
hooks: []
plugins: [search]
nav: [index.md]
"""


@pytest.mark.parametrize("links", [{"index.md#there": None}, {"#no": "no such anchor", "x.md": "'x.md'"}])
def test_a_dead_link_or_anchor_ends_the_build(tmp_path, links):
    """With the command of `make site` and the site's own settings; nothing else is wrong with the page."""
    (tmp_path / "docs").mkdir()
    text = "".join(f"[a link]({link})\n" for link in links)
    (tmp_path / "docs" / "index.md").write_text(f"# Home\n\n## There\n\n{text}")
    (tmp_path / "mkdocs.yml").write_text(PLANTED.format(root=ROOT, folder=tmp_path))
    (line,) = re.findall(r"^\t.*/mkdocs (build.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    command = [sys.executable, "-m", "mkdocs", *line.split(), "--config-file", str(tmp_path / "mkdocs.yml")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [*command, "--site-dir", str(tmp_path / "site")], env=environment, capture_output=True, text=True,
        timeout=500, check=False,
    )  # fmt: skip
    wrong = [said for said in links.values() if said]
    assert (done.returncode == 0) == (not wrong), done.stderr
    assert done.stderr.count("WARNING") == len(wrong), done.stderr
    assert all(said in done.stderr for said in wrong), done.stderr


@pytest.mark.slow
def test_every_page_fits_the_window_and_can_be_read(sight, tmp_path):
    mkdocs(tmp_path, "--strict")
    assert sight.look_at(tmp_path / "site", sight.pages_of(tmp_path / "site"), list(sight.LOOKS)) == []


@pytest.mark.slow
def test_the_built_site_loads_nothing_from_elsewhere(tmp_path):
    mkdocs(tmp_path, "--strict")
    tmp_path = tmp_path / "site"
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 20
    assert (tmp_path / "benchmarks" / "index.html").is_file()
    assert (tmp_path / "search" / "search_index.json").is_file()
    for page in pages:
        loads = Loads()
        loads.feed(page.read_text(encoding="utf-8"))
        assert [one for one in loads.found if re.match(r"(https?:)?//", one)] == [], page
    for style in tmp_path.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", style.read_text(encoding="utf-8")), style
