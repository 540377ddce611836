import inspect
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload import errors

CASES = {
    "EvenloadError": lambda: errors.EvenloadError("it broke", hint="mend it"),
    "ConfigError": lambda: errors.ConfigError("2 is too few", hint="use 3"),
    "SpecError": lambda: errors.SpecError("job.yaml", [("stages[0].use", "missing")], hint="add it"),
    "UnknownName": lambda: errors.UnknownName("policy", "mesured", ["measured", "pull"]),
    "NoUsableDevice": lambda: errors.NoUsableDevice("none", causes={"cuda": "no driver"}, hint="use all"),
    "MissingExtra": lambda: errors.MissingExtra(
        "'torch' is not installed", hint="pip install 'evenload[torch]'"
    ),
    "FormatError": lambda: errors.FormatError("not a picture"),
    "TaskError": lambda: errors.TaskError("item 3 failed", index=3, device="cpu:0", remote_traceback="Trace"),
    "TaskTimeout": lambda: errors.TaskTimeout("slow", index=1),
    "WorkerLost": lambda: errors.WorkerLost("gone", index=1, device="cpu:1"),
    "ResultNotSendable": lambda: errors.ResultNotSendable("a lambda", index=0),
    "ArgumentFailed": lambda: errors.ArgumentFailed("add was not called"),
    "SlicesFailed": lambda: errors.SlicesFailed(
        "2 slices failed", [CASES[n]() for n in ("TaskError", "WorkerLost")]
    ),
    "PromptsFailed": lambda: errors.PromptsFailed("1 of 2 failed", CASES["TaskError"](), ["a", "b"]),
    "GangError": lambda: errors.GangError("rank 1 raised", rank=1, device="cpu:1", remote_traceback="Trace"),
    "PeerLost": lambda: errors.PeerLost("rank 1 of 4 lost a peer in run", hint="start again"),
    "ResourceExhausted": lambda: errors.ResourceExhausted("no memory", hint="smaller batches"),
    "ExecutorClosed": lambda: errors.ExecutorClosed("closed"),
}


FUNCTIONS = {"folder_hint", "not_sendable", "printable", "quoted", "reason_of"}


def test_the_tree_is_complete_and_drawn_in_the_docstring():
    defined = {
        name
        for name, member in inspect.getmembers(errors, inspect.isclass)
        if issubclass(member, errors.EvenloadError)
    }
    assert defined == set(errors.__all__) - FUNCTIONS == set(CASES)
    assert all(name in errors.__doc__ for name in defined)


@pytest.mark.parametrize("name", CASES)
def test_every_error_survives_a_trip_between_processes(name):
    error = CASES[name]()
    assert type(error).__name__ == name
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert vars(back) == vars(error)
    assert back.exit_code in (1, 2, 3)


def test_a_group_of_failed_slices_is_taken_apart_by_kind():
    lost = CASES["WorkerLost"]()
    group = errors.SlicesFailed("2 slices failed", [CASES["TaskError"](), lost])
    back = pickle.loads(pickle.dumps(group))
    assert [type(one) for one in back.exceptions] == [errors.TaskError, errors.WorkerLost]
    matched, rest = group.split(errors.WorkerLost)
    assert matched is not None
    assert matched.exceptions == (lost,)
    assert rest is not None
    assert str(group) == "2 slices failed; the first: item 3 failed"
    assert (group.index, group.device) == (3, "cpu:0")


def test_an_unknown_name_proposes_the_nearest_and_lists_the_rest():
    error = CASES["UnknownName"]()
    assert error.message == "unknown policy 'mesured'"
    assert error.hint == "did you mean 'measured'? known: measured, pull"
    assert errors.UnknownName("policy", "zzz", ["b", "a"]).hint == "use one of: a, b"
    assert isinstance(error, errors.ConfigError)


def test_all_faults_of_a_job_are_told_at_once():
    error = errors.SpecError("job.yaml", [("a", "is wrong"), ("b", "too")])
    assert str(error) == "job.yaml has 2 faults:\n  a: is wrong\n  b: too"
    assert errors.SpecError("job.yaml", [("a", "x")]).message.startswith("job.yaml has 1 fault:")


def test_a_task_error_shows_the_remote_traceback():
    error = CASES["TaskError"]()
    assert str(error).endswith("--- on cpu:0 ---\nTrace")
    assert (error.index, error.device) == (3, "cpu:0")


def test_a_missing_extra_is_an_import_error_too():
    with pytest.raises(ImportError):
        raise CASES["MissingExtra"]()


def test_a_refused_value_is_a_value_error_too():
    with pytest.raises(ValueError, match="2 is too few"):
        raise CASES["ConfigError"]()


def test_exit_codes():
    codes = {name: make().exit_code for name, make in CASES.items()}
    assert {name for name, code in codes.items() if code == 2} == {"ConfigError", "SpecError", "UnknownName"}
    assert {name for name, code in codes.items() if code == 3} == {"NoUsableDevice", "MissingExtra"}


class Unspeakable:
    """An object whose repr raises."""

    def __repr__(self):
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a b", "'a b'"),
        (b"\0a", r"b'\x00a'"),
        ("\x1b[2J", r"'\x1b[2J'"),
        (None, "None"),
        (0.5, "0.5"),
        (-7, "-7"),
        ("a" * 10**6, "'" + "a" * 77 + "'…"),
        ("\x1b" * 100, "'" + r"\x1b" * 19 + r"\x…"),
        (10**5000, "<int of 16610 bits>"),
        ([1] * 10**6, "[1, 1, 1, 1, 1, 1, ...]"),
        (Unspeakable(), "<Unspeakable instance at 0x"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_quotation_is_short_and_without_control_characters(value, text):
    assert errors.quoted(value).startswith(text)
    assert len(errors.quoted(value)) <= 80


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(ODD, st.integers(10, 200))
def test_any_value_can_be_quoted(value: Any, most: int):
    for shown in (errors.quoted(value, most), errors.printable(str(value), most)):
        assert len(shown) <= most
        assert shown.isprintable()


def test_a_nested_list_can_be_quoted():
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    assert errors.quoted(value) == "[[[[[[[...]]]]]]]"
    while value:  # undone step by step: freeing so deep a list takes a deep stack
        value = value[0]


def test_an_unknown_name_may_be_long():
    assert len(errors.UnknownName("policy", "x" * 10**6, ["b", "a"]).message) < 200
