"""``evenload bench``: it measures what is there, says what is not, and one trial's fall stops no other."""

import json

import pytest
from click.testing import CliRunner

from evenload.cli.bench import command as module
from evenload.cli.bench.command import TRIALS, bench
from evenload.cli.bench.measure.trial_report import BenchOptions, compare_with_first
from evenload.errors import UnknownName


def call(*arguments):
    return CliRunner().invoke(bench, list(map(str, arguments)), standalone_mode=False)


def test_a_trial_as_json_as_a_table_and_as_a_page(tmp_path):
    result = call(
        "--quick", "--only", "unequal", "--json", "-o", tmp_path / "b.json", "--html", tmp_path / "b.html"
    )
    page = json.loads(result.stdout)
    assert page == json.loads((tmp_path / "b.json").read_text())
    rows = {row["policy"]: row for row in page["trials"][0]["rows"]}
    assert rows["measured"]["of_best"] > rows["static:equal"]["of_best"]
    assert all(0 < row["worst"] <= row["of_best"] <= 1.0 for row in rows.values())
    assert page["machine"]["cores"] >= 1
    text = (tmp_path / "b.html").read_text(encoding="utf-8")
    assert len(text) < 1_500_000
    assert "Scheduling on unequal devices" in text
    lines = call("--quick", "--only", "unequal").stdout.splitlines()
    assert lines[0].startswith("unequal: ")
    assert any(line.startswith("  measured") for line in lines)


def test_what_is_not_installed_is_left_out_with_its_install_line(monkeypatch):
    monkeypatch.setattr(module, "is_installed", lambda name: name not in ("numba", "llvmlite"))
    result = call("--quick", "--only", "prove")
    assert result.return_value == 0
    assert "left out: llvmlite, numba not installed" in result.stdout
    assert "pip install 'evenload[zk]'" in result.stdout


def test_one_that_fails_is_told_and_stops_no_other(monkeypatch):
    monkeypatch.setitem(TRIALS, "merkle", ("merkle:gone", "Merkle tree", (), ""))
    result = call("--quick", "--only", "merkle", "--only", "unequal", "--json")
    merkle, unequal = json.loads(result.stdout)["trials"]
    assert merkle["skipped"].startswith("failed: AttributeError")
    assert unequal["rows"]
    assert result.return_value == 1


def test_an_unknown_trial_is_refused():
    assert isinstance(call("--only", "merkel").exception, UnknownName)


def test_the_same_work_on_two_selections():
    from evenload.cli.bench.measure.trials import scaling

    trial = scaling(BenchOptions(("cpu*1", "cpu*2"), 2, is_quick=True))
    one, two = trial.rows
    assert (one["n"], two["n"], one["speed_up"]) == (1, 2, 1.0)
    assert two["efficiency"] == pytest.approx(two["speed_up"] / 2)
    assert one["x_bound"] >= 0.99


def test_amdahl_is_against_the_first_row():
    rows = compare_with_first([{"n": 1, "work_s": 9.0}, {"n": 3, "work_s": 3.0}], start_s=1.0)
    assert rows[1]["speed_up"] == pytest.approx(10 / 4)
    assert rows[1]["amdahl"] == pytest.approx(1 / (0.1 + 0.9 / 3))


@pytest.mark.slow
def test_everything_that_is_installed_can_be_measured():
    page = json.loads(call("--quick", "--json").stdout)
    assert [trial["name"] for trial in page["trials"]] == list(TRIALS)
    assert [trial["skipped"] for trial in page["trials"] if trial["skipped"].startswith("failed")] == []
