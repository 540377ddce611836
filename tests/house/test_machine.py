"""No test takes for granted what another machine may lack: it tries and skips, or is named here with why.

``make test`` failed on three kinds of processor in a row, each time where a test compared with what a library
did on its author's machine: a product for 512-bit vectors, an LSTM in bfloat16. A test that runs a model in
lower precision, or asserts a clock, a number of cores, a locale or an instruction set, skips within
(``pytest.skip``, ``skipif``), replaces what it asks (``monkeypatch``), or stands below.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from parsed_sources import TESTS, nodes_of, text_of

ANYWHERE: dict[str, dict[str, str]] = {
    "clients/step/test_objective.py": {
        "test_bfloat16_is_bfloat16_and_close_to_serial": "products, which torch has for every CPU",
        "test_what_a_custom_step_would_ignore_is_refused": "refused before anything is computed",
        "test_rules_train_convolutions_in_bfloat16": "torch falls back to plain convolutions",
    },
    "devices/probes/test_cpu.py": {"test_the_real_cpu": "an upper limit that every machine keeps"},
}
"""File and test, and why the comparison holds on every machine."""

CLOCKS = {"perf_counter", "monotonic", "process_time", "thread_time", "time"}
CORES = {"cpu_count", "sched_getaffinity", "get_num_threads"}
LOCALES = {"setlocale", "getlocale", "strftime", "getpreferredencoding"}
EXTENSIONS = {"host_features", "baselines_here", "get_cpu_capability", "get_host_cpu_features"}
WORDS = ("autocast", "precision=", *CLOCKS, *CORES, *LOCALES, *EXTENSIONS)


def name_of(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def is_lower(call: ast.Call) -> bool:
    """Does a call compute in lower precision on a CPU, by torch's autocast or a recipe's?"""
    names = [one for one in call.keywords if one.arg == "precision" and isinstance(one.value, ast.Constant)]
    return name_of(call) == "autocast" or any(one.value.value is not None for one in names)  # type: ignore


def asked_of_machine(test: ast.AST) -> Iterator[str]:
    """What a test would have of the machine that runs it."""
    for node in ast.walk(test):
        if isinstance(node, ast.Call) and is_lower(node):
            yield "half precision"
        if isinstance(node, ast.Assert | ast.Compare):
            called = {name_of(one) for one in ast.walk(node) if isinstance(one, ast.Call)}
            for names, what in ((CLOCKS, "a clock"), (CORES, "cores"), (LOCALES, "a locale")):
                if called & names and isinstance(node, ast.Assert):
                    yield what
            if called & EXTENSIONS and isinstance(node, ast.Assert):
                yield "an instruction set"


def asks_first(test: ast.FunctionDef) -> bool:
    """Does a test skip, or replace what it asks, or is it left out where its condition does not hold?"""
    calls = {name_of(one) for one in ast.walk(test) if isinstance(one, ast.Call)}
    given = {one.arg for one in test.args.args}
    marks = " ".join(ast.unparse(one) for one in test.decorator_list)
    return bool(calls & {"skip", "importorskip"}) or "monkeypatch" in given or "skipif" in marks


def cases_in(path: Path) -> Iterator[ast.FunctionDef]:
    for node in nodes_of(path):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node


def test_no_test_takes_the_machine_for_granted() -> None:
    bare: dict[tuple[str, str], set[str]] = {}
    for path in TESTS.rglob("test_*.py"):
        if not any(word in text_of(path) for word in WORDS):
            continue
        for test in cases_in(path):
            asked = set(asked_of_machine(test))
            if asked and not asks_first(test):
                bare[path.relative_to(TESTS).as_posix(), test.name] = asked
    named = {(file, test) for file, tests in ANYWHERE.items() for test in tests}
    assert {one: what for one, what in bare.items() if one not in named} == {}, (
        "try it, and skip with the reason"
    )
    assert named - set(bare) == set(), "no longer there"


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("with torch.autocast('cpu', dtype=torch.bfloat16):\n        net(x)", {"half precision"}),
        ("train(net, data, Recipe(precision='bfloat16'))", {"half precision"}),
        ("train(net, data, Recipe(precision=None))", set()),
        ("began = time.monotonic()", set()),
        ("assert time.monotonic() - began < 3", {"a clock"}),
        ("assert os.cpu_count() == 2", {"cores"}),
        ("assert 'avx2' in host_features()", {"an instruction set"}),
        ("assert day.strftime('%B') == 'May'", {"a locale"}),
    ],
)
def test_what_is_asked_is_seen(body: str, what: set[str]) -> None:
    """Planted lines, so that the rule above cannot pass by seeing nothing."""
    assert set(asked_of_machine(ast.parse(f"def test_it():\n    {body}\n"))) == what
