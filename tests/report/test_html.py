"""The report file: complete, self-contained, and deaf to whatever hostile names a run brings."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

from evenload.errors import ConfigError
from evenload.events import EventFile, ItemFailed, Note, RunStarted, Span
from evenload.report.html import SCRIPTS, as_script_text, asset, page, view_of, write_comparison, write_report

HOSTILE = [
    "</script><script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    "'\"><b>bold</b>",
    "<!--<script>",
    "]]>&lt;&amp;\u2028\u2029",
    "control \x00\x01\x1b[31m\x7f characters\r\n",
    "\u202egnp.exe",
    "../../../../etc/passwd",
    "javascript:alert(1)",
    "{{view}} {{policy}}",
    "\ud800 lone",
    "e" * 5000,
]


class Parser(HTMLParser):
    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.scripts, self._inside = [], [], None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = len(self.scripts) if tag == "script" else None
        if tag == "script":
            self.scripts.append([dict(attrs), ""])

    def handle_endtag(self, tag):
        self._inside = None

    def handle_data(self, content):
        if self._inside is not None:
            self.scripts[self._inside][1] += content


def hostile_events():
    name = HOSTILE[0]
    yield RunStarted(
        0.0, name, 0.0, 3, {bad: {"name": bad} for bad in HOSTILE}, {bad: bad for bad in HOSTILE}
    )
    for index, bad in enumerate(HOSTILE):
        yield Span(bad, bad, bad, index, 1, 0.0, 1.0, why=bad)
        yield ItemFailed(1.0, bad, index, bad, bad, bad, bad, bad)
        yield Note(1.0, "warning", bad, bad)


def embedded(text):
    scripts = [script for attrs, script in Parser(text).scripts if attrs.get("type") == "application/json"]
    return json.loads(scripts[0])


def test_the_page_is_complete_and_loads_nothing(sample_run):
    text = page(view_of(sample_run()).to_json())
    tags = Parser(text).tags
    assert [tag for tag, _ in tags if tag in ("iframe", "object", "embed", "base")] == []
    for tag, attrs in tags:
        for name in ("src", "href", "action", "data", "poster"):
            target = attrs.get(name)
            assert target is None or target.startswith(("data:", "#")), (tag, target)
    assert "@import" not in asset("report.css")
    assert "url(" not in asset("report.css")
    assert len(text) < 1_500_000


def test_the_policy_allows_the_two_scripts_and_nothing_else(sample_run):
    parsed = Parser(page(view_of(sample_run()).to_json()))
    policy = next(attrs["content"] for tag, attrs in parsed.tags if attrs.get("http-equiv"))
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert "unsafe" not in rules["script-src"]
    scripts = [text for attrs, text in parsed.scripts if attrs.get("type") != "application/json"]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    assert rules["script-src"].split() == [f"'sha256-{one}'" for one in hashes]


def test_no_script_writes_markup():
    for name in SCRIPTS:
        source = asset(f"js/{name}.js")
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", source
        )
        assert "fetch(" not in source
        assert "</script" not in source.lower()
    assert "</script" not in asset("echarts.min.js").lower()


def test_the_vendored_file_is_the_one_that_the_readme_names():
    digest = hashlib.sha256(asset("echarts.min.js").encode()).hexdigest()
    assert digest in asset("README.md")


def test_hostile_names_stay_text():
    text = page(view_of(hostile_events()).to_json())
    parsed = Parser(text)
    assert len(parsed.scripts) == 3
    assert [attrs for tag, attrs in parsed.tags if tag in ("img", "b")] == []
    shown = embedded(text)
    assert shown["summary"]["failures"][0]["item"] == HOSTILE[0]
    assert set(shown["summary"]["facts"]) == set(HOSTILE)


@pytest.mark.parametrize("bad", HOSTILE)
def test_json_in_a_script_never_ends_it(bad):
    text = as_script_text({bad: [bad, 1.5, None]})
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {bad: [bad, 1.5, None]}


def test_a_run_folder_gets_its_report(tmp_path, sample_run):
    with EventFile(tmp_path / "events.jsonl") as sink:
        for event in sample_run(n_items=6):
            sink(event)
    (tmp_path / "config.yaml").write_text("name: six\n")
    summary = write_report(tmp_path)
    shown = embedded((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert shown["summary"]["n_done"] == summary.n_done == 6
    assert shown["config"] == "name: six\n"
    assert shown["links"] is True
    assert shown["faults"] == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.yaml", "events.jsonl", "report.html"]


def test_events_alone_need_a_place_that_can_be_written(tmp_path, sample_run):
    events = list(sample_run(n_items=3))
    with pytest.raises(ConfigError, match="where"):
        write_report(events)
    (tmp_path / "folder").mkdir()
    for place in (tmp_path / "nowhere" / "x.html", tmp_path / "folder"):
        with pytest.raises(ConfigError, match="cannot write"):
            write_report(events, place)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    write_report(events, tmp_path / "x.html")
    assert embedded((tmp_path / "x.html").read_text())["links"] is False


def test_nothing_ran_and_the_page_still_stands():
    shown = embedded(page(view_of([]).to_json(faults=["events.jsonl is missing"])))
    assert shown["summary"]["ratio"] is None
    assert shown["faults"] == ["events.jsonl is missing"]


@pytest.fixture
def runs(tmp_path, sample_run):
    folders = []
    for name, options in (("a", {}), ("b", {"fails": (3,), "names": "</script><b>{:03d}".format})):
        folders.append(tmp_path / name)
        folders[-1].mkdir()
        with EventFile(folders[-1] / "events.jsonl") as sink:
            for event in sample_run(n_items=12, **options):
                sink(event)
    return folders


def test_both_runs_are_on_the_page(runs, tmp_path):
    summaries = write_comparison(runs, tmp_path / "x.html")
    assert [one.n_failed for one in summaries] == [0, 1]
    text = (tmp_path / "x.html").read_text(encoding="utf-8")
    assert len(text) < 1_500_000
    assert "</script><b>" not in text
    assert f"{summaries[0].factors.share:.0%} of it useful work" in text
