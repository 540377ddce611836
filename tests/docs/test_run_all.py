"""``benchmarks/run_all.py``: several runs as one result, a limit for each, failures told."""

import json
from pathlib import Path

import pytest
from loaded_programs import loaded

ROOT = Path(__file__).parents[2]
WRITES = """
import json, os, sys
from pathlib import Path
folder, n = Path(os.environ["EVENLOAD_BENCHMARK_RESULTS"]), Path(sys.argv[0]).with_suffix(".n")
number = int(n.read_text()) + 1 if n.exists() else 1
n.write_text(str(number))
share = 0.5 if number in {disturbed} else 0.01
page = {{"name": "one", "rows": [{{"ms": float(number)}}], "load": {{"share_of_others": share}}}}
(folder / ("one.disturbed.json" if share > 0.05 else "one.json")).write_text(json.dumps(page))
"""


@pytest.fixture
def run_all(monkeypatch, tmp_path):
    (tmp_path / "benchmarks").mkdir()
    with loaded("benchmarks", "run_all") as (module,):
        monkeypatch.setattr(module, "ROOT", tmp_path)
        monkeypatch.setattr(module, "COMMITTED", tmp_path)
        monkeypatch.setattr(module, "wait_for_quiet", lambda: True)
        yield module


def program(tmp_path, text):
    (tmp_path / "benchmarks" / "one.py").write_text(text)


def test_a_disturbed_run_is_made_again_and_the_medians_are_written(run_all, tmp_path):
    program(tmp_path, WRITES.format(disturbed=(1, 3)))
    found = run_all.run(run_all.Benchmark("one.py", 1, ("one",)), 3)
    assert found.said == "wrote one.json (runs differ by at most 75.0%)"
    page = json.loads((tmp_path / "one.json").read_text())
    assert (page["rows"], page["runs"]) == ([{"ms": 4.0}], 3)  # of runs 2, 4 and 5; 1 and 3 were disturbed
    assert not list(tmp_path.glob("*.disturbed.json"))


def test_what_is_always_disturbed_goes_into_no_table(run_all, tmp_path):
    program(tmp_path, WRITES.format(disturbed=tuple(range(9))))
    found = run_all.run(run_all.Benchmark("one.py", 1, ("one",)), 3)
    assert found.said == "DISTURBED, in no table: one.disturbed.json"
    assert not (tmp_path / "one.json").exists()


def test_one_that_fails_or_hangs_is_told(run_all, tmp_path, monkeypatch):
    program(tmp_path, "raise SystemExit(3)")
    assert run_all.run(run_all.Benchmark("one.py", 1, ("one",)), 3).said == "exit code 3"
    program(tmp_path, "print('nothing is written')")
    assert run_all.run(run_all.Benchmark("one.py", 1, ("one",)), 3).said == "wrote no result"
    monkeypatch.setattr(run_all, "LEAST_LIMIT_S", 0.0)
    program(tmp_path, "import threading; threading.Event().wait()")
    assert run_all.run(run_all.Benchmark("one.py", 0, ("one",)), 3).said == "did not end within 0 min"


COUNTS = """
import json, os
from pathlib import Path
page = {"name": "one", "rows": [{"n": 3}], "is_of_speed": False, "load": {"share_of_others": 0.9}}
(Path(os.environ["EVENLOAD_BENCHMARK_RESULTS"]) / "one.json").write_text(json.dumps(page))
"""


def test_counts_are_made_once_whatever_else_runs(run_all, tmp_path, monkeypatch):
    program(tmp_path, COUNTS)
    one, waits = run_all.Benchmark("one.py", 2, ("one",)), []
    monkeypatch.setattr(run_all, "wait_for_quiet", lambda: waits.append(1))
    assert one.runs_of(3) == 3  # nobody knows yet
    assert run_all.run(one, 3).said == "wrote one.json"
    assert (one.runs_of(3), waits) == (1, [1])
    assert run_all.run(one, 3).said == "wrote one.json"
    assert waits == [1]
    assert json.loads((tmp_path / "one.json").read_text())["runs"] == 1


def test_what_needs_a_peer_is_run_where_that_is(run_all, monkeypatch, capsys):
    monkeypatch.delenv("EVENLOAD_PEER", raising=False)
    here = run_all.Benchmark("one.py", 1, ("one",))
    there = run_all.Benchmark("two.py", 1, ("two",), needs="a peer", told_by=("EVENLOAD_PEER",))
    nowhere = run_all.Benchmark("three.py", 1, ("three",), needs="a prayer")
    monkeypatch.setattr(run_all, "BENCHMARKS", (here, there, nowhere))
    assert run_all.chosen([], stale=False) == [here]
    said = capsys.readouterr().err
    assert "left out: two: needs a peer (say where: EVENLOAD_PEER)" in said
    assert "left out: three: needs a prayer\n" in said
    assert run_all.chosen(["three"], stale=False) == [nowhere]
    monkeypatch.setenv("EVENLOAD_PEER", "/peer")
    assert run_all.chosen([], stale=False) == [here, there]


def test_every_committed_result_has_a_command_that_makes_it(run_all):
    made = {name for one in run_all.BENCHMARKS for name in one.results}
    committed = {path.stem for path in (ROOT / "benchmarks" / "results").glob("*.json")}
    assert committed - {"chaos"} <= made
    for one in run_all.BENCHMARKS:
        assert (ROOT / "benchmarks" / one.command.split()[0]).is_file()
    with pytest.raises(SystemExit, match="no benchmark writes nonsense"):
        run_all.chosen(["nonsense"], stale=False)
