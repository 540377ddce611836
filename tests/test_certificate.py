"""The checker of certificates: what it accepts is true, and what is no certificate is refused in words."""

import ast
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from certificate_truth import edited, is_true
from examples_count import examples

from evenload import certificate
from evenload.balance.flow import route
from evenload.certificate import Refused, check, load, main, parse
from evenload.events import RunStarted, Span
from evenload.moe.placement.bound import placement_certificate
from evenload.pipeline.planning.plan_certificate import plan_certificate
from evenload.pipeline.planning.planner import make_plan
from evenload.pipeline.problem import PlanDevice, PlanStage, Problem, Weights
from evenload.report.certificates import run_certificate

SCRIPT = Path(__file__).parents[1] / "scripts" / "check_certificate.py"
SPANS = [
    *(Span("edit", "a", "a", k, 1, float(k), k + 1.0) for k in range(3)),
    Span("edit", "b", "b", 3, 2, 0.0, 3.5, 3.25),
    Span("score", "b", "b", 0, 4, 4.0, 6.0, 1.5),
    Span("score", "a", "a", 4, 1, 4.0, 5.0, 1.0),
]
LONGEST = [
    Span("x", "a", "a", 0, 1, 0.0, 9.0),
    *(Span("x", "b", "b", k, 1, k + 0.0, k + 1.0) for k in range(1, 4)),
]


def pages():
    """A certificate of each kind of evidence."""
    yield run_certificate([RunStarted(0.0, "two stages", 0.0, 5, {"a": {}, "b": {}}), *SPANS])
    yield run_certificate([RunStarted(0.0, "a long one", 0.0), *LONGEST])
    yield route([0, 1, 2, 0, 3, 3], [9, 7, 2, 1], 3, speeds=[2, 2, 1]).certificate().to_json("a batch")
    phy2log, speeds = np.array([[0, 1, 0, 2], [0, 1, 1, 2]]), np.array([2.0, 1.0])
    weights = np.array([[[6.0, 2.5, 1.0], [3.0, 8.0, 0.0]]])
    yield placement_certificate(phy2log, weights, np.array([0, 0, 1, 1]), speeds)
    edit = PlanStage("edit", 1.0, 0.5, Weights(4, 2, 4), fits=("layer_split",))
    stages = (edit, PlanStage("score", 0.3, 2.0, Weights(1)))
    problem = Problem(stages, (PlanDevice("a", 1.0, 9), PlanDevice("b", 0.5, 9)), 6)
    plan = make_plan(problem)
    assert any(len(unit.devices) == 2 for phase in plan.phases for unit in phase.units)
    yield plan_certificate(problem, plan, "two stages")


def refusal(content: bytes) -> str | None:
    """Why a file is refused, None if it is not."""
    try:
        check(parse(content))
    except Refused as error:
        return str(error)
    return None


@pytest.fixture(scope="module")
def all_pages():
    return list(pages())


def test_random_edits_are_refused_or_still_true(all_pages):
    chance, n_refused, judged, n_all = random.Random(20), 0, {}, examples(5000)
    for k in range(n_all):
        content = edited(all_pages[k % len(all_pages)], chance)
        if (why_not := refusal(content)) is not None:
            n_refused += 1
            assert len(why_not) < 250
            assert why_not.isprintable()
            continue
        page = json.loads(content)
        key = json.dumps([page["kind"], page["claim"], page["evidence"]], sort_keys=True)
        if key not in judged:
            judged[key] = is_true(page)
        assert judged[key], content[:2000]
    assert n_all / 2 < n_refused < n_all


def test_each_claim_is_as_tight_as_it_can_be(all_pages):
    """One nanosecond less, or more, is no longer what the evidence says."""
    for page in all_pages:
        for name, by in (("achieved", -1), ("bound", page["claim"]["bound"]), ("ratio", -0.01)):
            worse = json.loads(json.dumps(page))
            worse["claim"][name] += by
            with pytest.raises(Refused, match=f"claim.{name}|claim.ratio"):
                check(parse(json.dumps(worse).encode()))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "no JSON"),
        (b"[" * 200_000, "no JSON"),
        (b'{"a":1e999999999}', "too large"),
        (b'{"a":1e-99999}', "too large"),
        (b'{"a":' + b"9" * 5000 + b"}", "too large"),
        (b'{"a":-1}', "below 0"),
        (b'{"a":NaN}', "number NaN"),
        (b'{"a":Infinity}', "number Infinity"),
        (b"\xff\xfe{\x00}\x00", "no JSON"),
        (b"[" + b"0," * 5_000_000 + b"0]", "entries"),
        (b" " * 49_000_000, "bytes"),
    ],
    ids=lambda value: repr(value[:12]),
)
def test_what_is_no_such_file_is_refused_before_it_is_read(content, why):
    with pytest.raises(Refused, match=why):
        parse(content)


@pytest.mark.parametrize(
    "page", [None, 1, [], {}, {"format": []}, {"format": "evenload-certificate", "version": 2}]
)
def test_what_is_no_certificate_is_refused(page):
    with pytest.raises(Refused):
        check(page)


def places(page, path=()):
    """Where each number of a page is."""
    inner = page.items() if isinstance(page, dict) else enumerate(page) if isinstance(page, list) else ()
    for key, value in inner:
        if isinstance(value, int | float):
            yield (*path, key)
        yield from places(value, (*path, key))


@pytest.mark.parametrize("odd", ["1e999999999", "9", [1], ["9", "9"], {"a": 1}, None])
def test_what_is_no_number_is_neither_read_as_one_nor_multiplied(all_pages, odd):
    """A text or a list times a number of nanoseconds would fill the memory."""
    for page in all_pages:
        known = check(parse(json.dumps(page).encode()))
        for *path, last in places(page):
            worse = json.loads(json.dumps(page))
            where = worse
            for key in path:
                where = where[key]
            where[last] = odd
            content = json.dumps(worse).encode()
            assert refusal(content) is not None or check(parse(content)) == known, path


def test_a_stage_counts_once(all_pages):
    """Its time and its bound would add up; a file that names it a million times is refused before any sum."""
    page = json.loads(json.dumps(all_pages[1]))
    page["evidence"]["stretches"] *= 3
    assert refusal(json.dumps(page).encode()) == "stretches: not each stage once"


def test_two_stretches_of_a_plan_prove_nothing(all_pages):
    """Only a run can have had them; a better plan would overlap the stages."""
    plan = next(page for page in all_pages if page["kind"] == "plan")
    first, last = dict(plan["evidence"]["stretches"][0]), dict(plan["evidence"]["stretches"][0])
    ends = [max(row[2] for row in stage["chunks"] + stage["loads"]) for stage in plan["evidence"]["stages"]]
    first |= {"stages": [0], "prices": [1], "stop": ends[0], "bound": 1}
    last |= {"stages": [1], "prices": [1], "start": ends[0], "stop": ends[1], "bound": 1}
    worse = {**plan, "evidence": {**plan["evidence"], "stretches": [first, last]}}
    assert "stretch 1: " in str(refusal(json.dumps(worse).encode()))


def test_prices_of_nothing_prove_nothing(all_pages):
    for page in all_pages:
        bare = json.loads(json.dumps(page))
        for one in bare["evidence"].get("stretches", ()):
            one["prices"] = [0] * len(one["stages"])
            with pytest.raises(Refused, match="not proved"):
                check(parse(json.dumps(bare).encode()))


def test_the_script_is_this_module_and_works_alone(tmp_path, all_pages):
    shutil.copy(SCRIPT, tmp_path / "check.py")
    assert (tmp_path / "check.py").read_bytes() == Path(certificate.__file__).read_bytes()
    (tmp_path / "good.json").write_text(json.dumps(all_pages[0]))
    (tmp_path / "bad.json").write_text(json.dumps({**all_pages[0], "kind": "\x1b[2J"}))
    done = subprocess.run(
        [sys.executable, "-I", "-S", "check.py", "good.json", "bad.json", "none.json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == ""
    good, bad, none = done.stdout.splitlines()
    assert good.startswith("good.json holds: ")
    assert bad.startswith("bad.json refused: kind")
    assert "\x1b" not in bad
    assert none.startswith("none.json refused: ")


def test_a_share_can_be_required(tmp_path, all_pages, capsys):
    path = tmp_path / "one.json"
    path.write_text(json.dumps(all_pages[0]))
    achieved, bound = check(load(path))
    assert main([str(path), "--require", str(float(bound / achieved) - 0.001)]) == 0
    assert main([str(path), "--require", "0.9999"]) == 1
    assert main([str(path), "--require", "9999/10000"]) == 1
    assert "% of the best possible" in capsys.readouterr().out
    for odd in ("nan", "inf", "x", "", "1/0", "1/00", "1e999999999", "-1", "x" * 9999):
        with pytest.raises(SystemExit):
            main([str(path), "--require", odd])
        said = capsys.readouterr().err
        assert "argument --require" in said
        assert "write one as 0.95 or 19/20" in said
        assert len(said) < 400


def test_it_is_short_and_imports_nothing_but_the_standard_library():
    text = Path(certificate.__file__).read_text()
    tree, docs = ast.parse(text), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            docs |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) else []
        assert all(name.partition(".")[0] in sys.stdlib_module_names for name in names)
    lines = [line for at, line in enumerate(text.splitlines(), 1) if line.strip() and at not in docs]
    assert len(lines) < 320, "lines of code"


def test_a_run_of_version_1_is_checked_as_before():
    """It was made by evenload 0.2: one speed of each device, the middle half's."""
    chunks = [
        [0, 0, 2 * 10**9, 2 * 10**9, [0, 2], 0, None, True],
        [1, 0, 10**9, 10**9, [2, 1], 0, None, True],
    ]
    stage = {"name": "map", "items": 3, "speeds": [1.0, 1.0], "load": [0, 0], "loads": [], "needs": []}
    stretch = {
        "start": 0,
        "stop": 2 * 10**9,
        "stages": [0],
        "bound": 1500000000,
        "prices": [0.5],
        "longest": 0,
    }
    page = {"format": "evenload-certificate", "version": 1, "kind": "run", "name": "old"}
    page["claim"] = {"achieved": 2 * 10**9, "bound": 1500000000, "ratio": 1.333333334}
    devices = [{"name": name, "lanes": 1, "parts": []} for name in "ab"]
    page["evidence"] = {"devices": devices, "stages": [stage | {"chunks": chunks}], "stretches": [stretch]}
    assert check(parse(json.dumps(page).encode())) == (2 * 10**9, 1500000000)
    page["evidence"]["stages"][0]["speeds"] = [1.0, 2.0]
    with pytest.raises(Refused, match="speeds are not what"):
        check(parse(json.dumps(page).encode()))


def test_a_large_run_is_checked():
    spans = [Span("x", f"g{k % 8}", f"g{k % 8}", k, 1, k // 8 + 0.0, k // 8 + 0.9) for k in range(8000)]
    assert run_certificate(spans)["claim"]["ratio"] < 1.12
