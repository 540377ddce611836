"""``benchmarks/run_all.py``: several runs as one result, a limit for each, failures told."""

import importlib
import json
import sys
from pathlib import Path

import pytest

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
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    before = set(sys.modules)
    module = importlib.import_module("run_all")
    (tmp_path / "benchmarks").mkdir()
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "COMMITTED", tmp_path)
    monkeypatch.setattr(module, "wait_for_quiet", lambda: True)
    yield module
    for name in set(sys.modules) - before:
        if "benchmarks" in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


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


def test_every_committed_result_has_a_command_that_makes_it(run_all):
    made = {name for one in run_all.BENCHMARKS for name in one.results}
    committed = {path.stem for path in (ROOT / "benchmarks" / "results").glob("*.json")}
    assert committed - {"chaos"} <= made
    for one in run_all.BENCHMARKS:
        assert (ROOT / "benchmarks" / one.command.split()[0]).is_file()
    with pytest.raises(SystemExit, match="no benchmark writes nonsense"):
        run_all.chosen(["nonsense"], stale=False)
