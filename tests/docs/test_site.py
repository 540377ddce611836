"""The site: a page of every result, and nothing loaded from elsewhere."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def load_script():
    """A function that loads a script, beside which its own modules are found."""

    def load(path):
        spec = importlib.util.spec_from_file_location(f"tested_{Path(path).stem}", ROOT / path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        sys.path.insert(0, str((ROOT / path).parent))
        try:
            spec.loader.exec_module(module)
        finally:
            sys.path.remove(str((ROOT / path).parent))
        return module

    return load


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


def test_earlier_versions_of_a_result_are_read_from_git_and_only_from_there(benchmark_page, tmp_path):
    assert benchmark_page.history.versions(tmp_path) == {}
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    subprocess.run([*git, "init", "-q"], cwd=tmp_path, check=True)
    for text in ('{"rows": [1]}', "{half", '{"rows": [2]}'):
        (results / "speed.json").write_text(text)
        subprocess.run([*git, "add", "."], cwd=tmp_path, check=True)
        subprocess.run([*git, "commit", "-q", "-m", text], cwd=tmp_path, check=True)
    assert benchmark_page.history.versions(tmp_path) == {"speed": [{"rows": [1]}, {"rows": [2]}]}


def test_a_plot_says_all_of_it_in_words_and_in_lengths(benchmark_page):
    rows = [{"way": "evenload <b>", "s": 1.0}, {"way": "other", "s": 4.0}, {"way": "none", "s": None}]
    question = benchmark_page.questions.Question(
        "Jobs", "?", benchmark_page.questions.ByRow(("way",), "s", "s")
    )
    versions = [
        {"rows": [{"way": "evenload <b>", "s": s}], "machine": {"cpu": "c"}, "date": d}
        for s, d in ((3.0, "a"), (1.0, "b"))
    ]
    text = "\n".join(benchmark_page._plot(question, rows, benchmark_page._history(question, versions)))
    assert re.findall(r'class="(\w+)" style="width: ([\d.]+)%', text) == [
        ("ours", "25.0"),
        ("theirs", "100.0"),
    ]
    assert "less is better" in text
    assert "as committed: 3 (a), 1 (b)" in text
    assert "<b>" not in text


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


@pytest.mark.slow
def test_the_built_site_loads_nothing_from_elsewhere(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, timeout=550)
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
