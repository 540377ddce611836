"""``evenload audit``: the text, the JSON, the page, and what it says of files that are no traces."""

import json

import pytest
from planted_traces import FORMATS

from evenload.audit.recording import EXCHANGE, WORK
from evenload.cli import main

# Two devices: one works all the time; the other starts late, waits for a while, and ends early.
SCHEDULE = [[WORK] * 100, [None] * 10 + [WORK] * 30 + [None] * 20 + [WORK] * 20 + [None] * 20]


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["audit", *words])
    shown = capsys.readouterr()
    return ended.value.code, shown.out, shown.err  # type: ignore[return-value]


def test_the_text_tells_what_was_lost_and_to_what(tmp_path, capsys):
    FORMATS["torch.json.gz"](SCHEDULE, tmp_path / "trace.json.gz")
    code, out, err = run([str(tmp_path / "trace.json.gz")], capsys)
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


def test_json_is_one_object_and_the_page_is_written(tmp_path, capsys):
    FORMATS["ray.json"](SCHEDULE, tmp_path / "ray.json")
    page = tmp_path / "audit.html"
    code, out, err = run([str(tmp_path / "ray.json"), "--json", "-o", str(page), "--count", "3"], capsys)
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
def test_what_is_refused(words, code, said, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    FORMATS["cpu.json"](SCHEDULE, tmp_path / "cpu.json")
    (tmp_path / "empty").write_text("")
    found, out, err = run(words, capsys)
    assert (found, out) == (code, "")
    assert said in err


def test_rows_and_gaps_as_asked_for(tmp_path, capsys):
    path = tmp_path / "chrome.json"
    FORMATS["chrome.json"](SCHEDULE, path)
    by = {
        rows: json.loads(run([str(path), "--json", "--rows", rows], capsys)[1])
        for rows in ("auto", "process")
    }
    assert [by[rows]["n_devices"] for rows in ("auto", "process")] == [2, 1]
    found = json.loads(run([str(path), "--json", "--launch-gap", "1"], capsys)[1])
    assert found["causes"]["launch gaps"]["lost_h"] == pytest.approx(800e-6 / 3600)
    assert found["causes"]["serial"]["lost_h"] == 0


def test_copies_and_collectives_are_exchange(tmp_path, capsys):
    path = tmp_path / "nsight.sqlite"
    FORMATS["nsight.sqlite"]([[WORK] * 5 + [EXCHANGE] * 5, [WORK] * 9 + [EXCHANGE]], path)
    found = json.loads(run([str(path), "--json"], capsys)[1])
    assert found["causes"]["exchange"]["lost_h"] == pytest.approx(6 * 40e-6 / 3600)
    assert found["source"] == "Nsight Systems"
