"""``evenload audit``: the text, the JSON, the page, and what it says of files that are no traces."""

import json
from functools import partial

import pytest
from planted_traces import FORMATS

from evenload.audit.recording import WORK

# Two devices: one works all the time; the other starts late, waits for a while, and ends early.
SCHEDULE = [[WORK] * 100, [None] * 10 + [WORK] * 30 + [None] * 20 + [WORK] * 20 + [None] * 20]


@pytest.fixture
def run(command):
    return partial(command, "audit")


def test_the_text_tells_what_was_lost_and_to_what(tmp_path, run):
    FORMATS["torch.json.gz"](SCHEDULE, tmp_path / "trace.json.gz")
    code, out, err = run(tmp_path / "trace.json.gz")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("The largest loss: serial, 800 µs of 8 ms of device time (10%). Spread what")
    assert lines[2].endswith("spans on 2 devices, 4 ms")
    assert lines[3] == "75.0% of the devices' time was work; lost: 2 ms"
    words = {line.split()[0]: line.split()[1:4] for line in lines if line}
    assert words["serial"] == ["800", "µs", "10.0%"]
    assert words["tail"] == ["800", "µs", "10.0%"]
    assert words["start-up"] == ["400", "µs", "5.0%"]
    assert "bound" not in words  # kernels stay on their GPU
    assert words["gpu:1"][:2] == ["50.0%", "1.00"]


def test_json_is_one_object_and_the_page_is_written(tmp_path, run):
    FORMATS["ray.json"](SCHEDULE, tmp_path / "ray.json")
    page = tmp_path / "audit.html"
    code, out, err = run(tmp_path / "ray.json", "--json", "-o", page, "--count", "3")
    found = json.loads(out)
    assert (code, found["schema"], found["n_devices"]) == (0, 1, 3)
    assert found["causes"]["not used"]["lost_h"] == pytest.approx(0.4 / 3600)
    assert {one["name"] for one in found["what_ifs"]} == {"measured", "size hints", "placement"}
    assert str(page) in err
    assert "Audit: Ray timeline" in page.read_text()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "Missing argument"),
        (["none.json"], 2, "cannot read"),
        (["empty"], 1, "no trace of a known format"),
        (["cpu.json", "--count", "1"], 2, "the trace has 2 devices, not 1"),
        (["cpu.json", "--rows", "core"], 2, "Invalid value"),
        (["cpu.json", "--launch-gap", "-1"], 2, "Invalid value"),
        (["cpu.json", "-o", "no/such/folder/x.html"], 2, "cannot write"),
    ],
)
def test_what_is_refused(words, code, said, tmp_path, run, monkeypatch):
    monkeypatch.chdir(tmp_path)
    FORMATS["cpu.json"](SCHEDULE, tmp_path / "cpu.json")
    (tmp_path / "empty").write_text("")
    found, out, err = run(*words)
    assert (found, out) == (code, "")
    assert said in err


def test_rows_and_gaps_as_asked_for(tmp_path, run):
    path = tmp_path / "chrome.json"
    FORMATS["chrome.json"](SCHEDULE, path)
    by = {rows: json.loads(run(path, "--json", "--rows", rows)[1]) for rows in ("auto", "process")}
    assert [by[rows]["n_devices"] for rows in ("auto", "process")] == [2, 1]
    found = json.loads(run(path, "--json", "--launch-gap", "1")[1])
    assert found["causes"]["launch gaps"]["lost_h"] == pytest.approx(800e-6 / 3600)
    assert found["causes"]["serial"]["lost_h"] == 0
