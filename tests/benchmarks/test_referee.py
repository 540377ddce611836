"""``benchmarks/referee``: the checker sees each planted fault, and small runs of rivals are what it says."""

import ast
import copy
import gzip
import importlib
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "referee"
RIVALS = sorted(path.stem for path in (FOLDER / "rivals").glob("*.py"))
IN_SUITE = ("evenload_map", "pool")
S = 1_000_000_000


@pytest.fixture(scope="module")
def replay():
    """The program that makes the runs, with the checker as ``replay.check``."""
    before, path = set(sys.modules), list(sys.path)
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module("replay")
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if "benchmarks" in str(getattr(sys.modules[name], "__file__", "")) or name == "rivals":
            del sys.modules[name]


def page_of(attempts, costs=(2.0, 4.0, 2.0), devices=(((0, 1),), ((0, 2),)), **more):
    """A record as a run leaves it: by default of two devices of speeds 1 and 2 that share 8 units."""
    done = sorted({row[0] for row in attempts if row[3] is not None})
    return {
        "format": "evenload-referee 1", "case": "made by hand", "rival": "nobody", "version": "0",
        "costs": list(costs), "devices": [[list(turn) for turn in rates] for rates in devices], "epoch": 0,
        "ended": 9 * S, "ended_itself": True, "said": "", "delivered": done, "attempts": attempts, **more,
    }  # fmt: skip


def by_hand():
    """Item 0 on the slow device, 1 and 2 on the fast one: 3 s, where 8 / 3 s is the least."""
    return page_of([[0, 0, 0, 2 * S, 1], [1, 1, 0, 2 * S, 1], [2, 1, 2 * S, 3 * S, 1]])


def test_a_run_made_by_hand_is_what_arithmetic_says(replay):
    """Oracle: a world small enough for a pencil."""
    found = replay.check.judge(by_hand())
    assert found["makespan_s"] == 3.0
    assert found["bound_s"] == pytest.approx(8 / 3)
    assert found["ratio"] == pytest.approx(8 / 9)
    assert (found["lost"], found["again"], found["cut"], found["late"]) == (0, 0, 0, 0.0)


@pytest.mark.parametrize(
    ("devices", "costs", "least"),
    [
        ([[[0, 1]], [[0, 2]]], [2, 2, 2], 2.0),
        ([[[0, 1]], [[0, 2]]], [1, 8], 4.0),  # the longest on the fastest
        ([[[0, 1]], [[0, 3], [1, 1]]], [1] * 8, 3.0),  # 4 units in the first second, 2 in each later one
        ([[[0, 1]], [[0, 3], [1, 0]]], [1] * 8, 5.0),
        ([[[0, 1], [2, 0]], [[0, 1], [2, 0]]], [5], math.inf),
        ([[[0, 1]], [[0, 4], [1, 0.5]]], [6], 5.0),  # on the fast one 4 + 0.5 * 4
    ],
)
def test_the_bound_is_what_arithmetic_says(replay, devices, costs, least):
    """Oracle: worked out by hand."""
    assert replay.check.bound_s(devices, costs) == pytest.approx(least)


def twice_delivered(page):
    page["delivered"].append(0)


def stop_before_start(page):
    page["attempts"][2][2:4] = [4 * S, 3 * S]


def overlap(page):
    page["attempts"][2][2] = 2 * S - 1000


def too_quick(page):
    page["attempts"][1][3] = 2 * S - 10_000


def never_made(page):
    del page["attempts"][0]


def made_too_late(page):
    page["ended"] = 3 * S - 1


def unknown_device(page):
    page["attempts"][0][1] = 7


def unknown_item(page):
    page["attempts"][0][0] = 3


def before_the_call(page):
    page["attempts"][0][2] = -1


def cut_within(page):
    page["attempts"].append([1, 0, S, None, 0])


def other_clock(page):
    page["epoch"] = -4 * S


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (twice_delivered, "an item twice"),
        (stop_before_start, "before it begins"),
        (overlap, "at once on device 1"),
        (too_quick, "of its cost done"),
        (never_made, r"not done by then: \[0\]"),
        (made_too_late, r"not done by then: \[2\]"),
        (unknown_device, "no such one"),
        (unknown_item, "no such one"),
        (before_the_call, "before the call"),
        (other_clock, "clock does not begin"),
        (cut_within, "items 0 and 1 at once"),
    ],
)
def test_a_planted_fault_is_refused(replay, tmp_path, capsys, spoil, why):
    page = by_hand()
    spoil(page)
    with pytest.raises(replay.check.Refused, match=why):
        replay.check.judge(page)
    file = tmp_path / "runs.jsonl"
    file.write_text(json.dumps(by_hand()) + "\n" + json.dumps(page) + "\n")
    assert replay.check.main([str(file)]) == 1
    good, bad = capsys.readouterr().out.splitlines()
    assert good.startswith("0.889 of the best")
    assert bad.startswith("REFUSED")


def test_an_item_may_begin_before_the_clock_of_the_devices(replay):
    """Two workers begin at once; one starts the devices' clock, the other had looked at its own before."""
    page = by_hand() | {"epoch": 5_000_000}
    assert replay.check.judge(page)["ratio"] == pytest.approx(8 / 9)


def test_what_a_rival_could_not_do_is_counted(replay):
    page = by_hand()
    page["attempts"] += [[2, 0, 2 * S, 5 * S, 1], [1, 0, 6 * S, None, 0]]
    found = replay.check.judge(page)
    assert (found["again"], found["cut"], found["lost"], found["makespan_s"]) == (1, 1, 0, 3.0)
    page["delivered"].remove(1)
    assert replay.check.judge(page) | {"ratio": None, "lost": 1} == replay.check.judge(page)
    found = replay.check.judge(by_hand() | {"ended_itself": False})
    assert (found["lost"], found["ratio"]) == (0, None)


def test_the_bound_of_real_processes_is_of_their_own_seconds(replay):
    half = S // 2
    rows = [[0, 0, 0, 2 * S, 2 * S], [1, 1, 0, S, S], [2, 1, S + half, 3 * S, S]]
    found = replay.check.judge(page_of(rows, devices=()) | {"devices": [None, None]})
    assert (found["bound_s"], found["makespan_s"]) == (2.0, 3.0)
    rows[0][4] = 3 * S
    with pytest.raises(replay.check.Refused, match="of a processor in less time"):
        replay.check.judge(page_of(rows) | {"devices": [None, None]})


@settings(max_examples=examples(100), deadline=None)
@given(
    costs=st.lists(st.floats(0.01, 10), min_size=1, max_size=12),
    speeds=st.lists(st.floats(0.1, 9), min_size=1, max_size=4),
    draws=st.randoms(use_true_random=False),
)
def test_a_dealt_work_passes_and_a_shortened_one_does_not(replay, costs, speeds, draws):
    """Oracle: the schedule is made here, device after device, so that it cannot be impossible."""
    free, rows = [0] * len(speeds), []
    for number, cost in enumerate(costs):
        device = draws.randrange(len(speeds))
        start = free[device] + draws.randrange(S)
        free[device] = start + math.ceil(cost / speeds[device] * S)
        rows.append([number, device, start, free[device], 1])
    page = page_of(rows, costs, [[[0, speed]] for speed in speeds], ended=max(free))
    found = replay.check.judge(page)
    last, first = max(row[3] for row in rows), min(row[2] for row in rows)
    assert found["makespan_s"] == pytest.approx((last - first) / S)
    assert 0 < found["ratio"] <= 1 + 1e-5
    spoilt = copy.deepcopy(page)
    row = draws.choice(spoilt["attempts"])
    row[3] -= (row[3] - row[2]) // 100
    with pytest.raises(replay.check.Refused):
        replay.check.judge(spoilt)


def test_the_checker_stands_alone():
    """A stranger reads and runs one file: it imports what comes with Python, and none of ours."""
    imports = [node for node in ast.walk(ast.parse((FOLDER / "check.py").read_text()))
               if isinstance(node, ast.Import | ast.ImportFrom)]  # fmt: skip
    names = {str(getattr(node, "module", None) or node.names[0].name).split(".")[0] for node in imports}
    assert names <= set(sys.stdlib_module_names)


@pytest.mark.parametrize("rival", RIVALS)
def test_a_rival_is_one_small_file(rival):
    """Whoever knows a tool better can mend it: 40 lines at most, the protocol, a page to read."""
    text = (FOLDER / "rivals" / f"{rival}.py").read_text()
    assert len(text.splitlines()) <= 40
    for part in ("NAME, PACKAGE, KEEPS_WORKERS = ", "def workers(n: int, limit_s: float | None)"):
        assert part in text
    assert "https://" in text or rival == "evenload_map"


def test_a_recorded_work_is_what_its_first_line_says():
    """Oracle: numpy's own count, of the router's choices that the tests have."""
    lines = [json.loads(line) for line in (FOLDER / "works" / "experts.jsonl").read_text().splitlines()]
    layers = [layer for name in ("law", "intent")
              for layer in np.load(ROOT / f"tests/data/routing/routing_{name}.npz")["experts"]]  # fmt: skip
    batches = [layer[at : at + 2048] for layer in layers for at in range(0, len(layer) - 2047, 2048)]
    assert [line["cost"] for line in lines[1:]] == [np.bincount(one.ravel()).max() for one in batches]
    assert [line["bytes"] for line in lines[1:]] == [one.nbytes for one in batches]
    assert "26 layers" in lines[0]["source"]


def small(replay, fault=""):
    costs = [0.05 + 0.01 * (number % 5) for number in range(12)]
    faults = {4: fault} if fault else {}
    return replay.Case("small", "[[[0, 1]], [[0, 2]]]", fault, costs, [8] * 12, faults)


@pytest.mark.parametrize(
    "rival", [pytest.param(one, marks=[] if one in IN_SUITE else [pytest.mark.slow]) for one in RIVALS]
)
def test_a_small_work_comes_back_whole(replay, monkeypatch, rival):
    """Oracle: the tasks' own records, judged by a program that shares nothing with who dealt them."""
    monkeypatch.setattr(replay, "LEAST_S", 300.0)  # Ray Data hands over nothing before all is done
    package = importlib.import_module(f"rivals.{rival}").PACKAGE
    if package:
        pytest.importorskip(package)
    page = replay.run(small(replay), rival)
    found = replay.check.judge(page)
    assert sorted(page["delivered"]) == list(range(12)), page["said"]
    assert found["ended_itself"]
    assert {row[1] for row in page["attempts"]} == {0, 1}
    assert 0 < found["ratio"] <= 1


@pytest.mark.parametrize("fault", ["raises", "kills its worker"])
def test_an_item_that_fails_once_is_done_by_us(replay, fault):
    page = replay.run(small(replay, fault), "evenload_map")
    found = replay.check.judge(page)
    assert (found["lost"], found["ended_itself"]) == (0, True), page["said"]
    assert any(row[0] == 4 and row[3] is None for row in page["attempts"]), "it did fail once"


def test_a_rival_that_waits_for_ever_is_ended_and_keeps_what_it_did(replay, monkeypatch):
    monkeypatch.setattr(replay, "LEAST_S", 5.0)
    page = replay.run(small(replay, "kills its worker"), "pool")
    found = replay.check.judge(page)
    assert not found["ended_itself"]
    assert 4 not in page["delivered"]
    assert found["ratio"] is None


def test_the_committed_table_is_what_the_committed_records_say(replay):
    """Oracle: the checker, on the record of each run."""
    results = ROOT / "benchmarks" / "results"
    with gzip.open(results / "referee.runs.jsonl.gz", "rt", encoding="utf-8") as file:
        pages = [json.loads(line) for line in file]
    table = json.loads((results / "referee_outcomes.json").read_text())
    assert replay.outcomes_of(pages) == table["rows"]
    assert {(page["case"], page["rival"]) for page in pages} == {
        (case.name, rival) for case in replay.cases(is_real=False) for rival in table["rivals"]
    }


def test_words_of_outcomes_say_nothing_of_speed(replay):
    """Oracle: records made by hand; the worst run counts, and a case that all get through is left out."""
    whole, lost, stuck = by_hand(), by_hand(), by_hand() | {"ended_itself": False}
    lost["delivered"], stuck["delivered"] = [1, 2], [1]
    ours = {"rival": "evenload"}
    assert replay.outcomes_of([whole, whole | ours]) == []
    other = {"case": "made by hand", "nobody": "loses others, too; never returns", "evenload": "ok"}
    assert replay.outcomes_of([lost, stuck, whole | ours]) == [other]
    mine = {"case": "second", "nobody": "ok", "evenload": "loses it"}
    second = [whole | {"case": "second"}, lost | ours | {"case": "second"}]
    assert replay.outcomes_of([lost, stuck, whole | ours, *second]) == [mine, other]
    assert replay.word([replay.check.judge(by_hand() | {"delivered": []})], 3) == "loses all"


def test_runs_that_are_on_record_are_not_made_again(replay, monkeypatch, tmp_path):
    """Oracle: a list of what ran. The second of four runs breaks, and the next call makes what is missing."""
    made, case = [], small(replay)

    def run(given, rival):
        made.append(rival)
        if len(made) == 2:
            raise OSError("broke")
        return by_hand() | {"case": given.name, "rival": {"pool": "multiprocessing.Pool"}.get(rival, "Dask")}

    monkeypatch.setattr(replay, "run", run)
    pairs = [(case, "pool"), (case, "dask_futures"), (case, "pool"), (case, "dask_futures")]
    with pytest.raises(OSError, match="broke"):
        replay.run_all(pairs, tmp_path / "runs", at_once=1)
    replay.run_all(pairs, tmp_path / "runs", at_once=1)
    kept = replay.check.runs_of(str(tmp_path / "runs"))
    assert sorted(page["rival"] for page in kept) == ["Dask"] * 2 + ["multiprocessing.Pool"] * 2
    replay.run_all(pairs, tmp_path / "runs", at_once=1)
    assert len(made) == 5
