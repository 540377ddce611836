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
def benchmark_page():
    spec = importlib.util.spec_from_file_location("benchmark_page", ROOT / "scripts" / "benchmark_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_result_has_its_table(benchmark_page):
    text = benchmark_page.page()
    results = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
    assert results
    for path in results:
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
        part = text.partition(f"## {path.stem}\n")[2].partition("\n## ")[0]
        table = [line for line in part.splitlines() if line.startswith("|")]
        assert len(table) - 2 in (len(rows), len(rows[0]) - 1), path.name
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1, path.name


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
