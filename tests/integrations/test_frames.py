"""``evenload.frames.map`` gives what the frame's own method gives, with its index, columns and dtypes."""

import importlib
import re

import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import evenload
from evenload.errors import ConfigError, TaskError

pd = pytest.importorskip("pandas")
frames = importlib.import_module("evenload.frames")


@pytest.fixture(scope="module")
def executor():
    with evenload.Executor("cpu*2", backend="inline") as executor:
        yield executor


def is_equal(one, other):
    compare = (
        pd.testing.assert_frame_equal if isinstance(other, pd.DataFrame) else pd.testing.assert_series_equal
    )
    compare(one, other)
    return True


COLUMNS = {
    "whole": (st.integers(-9, 9), "int32"),
    "real": (st.floats(allow_nan=True, width=32), "float32"),
    "known": (st.none() | st.booleans(), "boolean"),
    "text": (st.none() | st.sampled_from(["a", "b", ""]), "str"),
    "kind": (st.sampled_from(["u", "v"]), "category"),
    "when": (st.datetimes(), "datetime64[us]"),
}


@st.composite
def tables(draw):
    n_rows = draw(st.integers(0, 8))
    names = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, unique=True))
    columns = {
        name: pd.Series(
            draw(st.lists(COLUMNS[name][0], min_size=n_rows, max_size=n_rows)), dtype=COLUMNS[name][1]
        )
        for name in names
    }
    frame = pd.DataFrame(columns)
    index = draw(st.sampled_from(["numbers", "texts", "twice the same"]))
    if index != "numbers":
        frame.index = [f"row {n if index == 'texts' else n // 2}" for n in range(n_rows)]
    return frame


OF_ROWS = {
    "a number": lambda row: len(str(row.iloc[0])),
    "a value": lambda row: row.iloc[0],
    "names": lambda row: pd.Series({"name": str(row.name), "dtype": str(row.dtype)}),
    "itself": lambda row: row,
    "a list": lambda row: [1, str(row.iloc[-1])],
    "nothing": lambda row: None,
}
OF_GROUPS = {
    "a number": lambda group: len(group),
    "rows": lambda group: group.head(2),
    "its name": lambda group: group.assign(of=str(group.name)),
    "a series": lambda group: pd.Series({"n": len(group), "of": str(group.name)}),
}


@given(tables(), st.sampled_from(sorted(OF_ROWS)))
@settings(max_examples=examples(40))
def test_rows_are_mapped_as_by_apply(executor, frame, name):
    assert is_equal(frames.map(frame, OF_ROWS[name], executor=executor), frame.apply(OF_ROWS[name], axis=1))


@given(tables(), st.sampled_from(sorted(OF_GROUPS)), st.booleans(), st.booleans(), st.data())
@settings(max_examples=examples(40))
def test_groups_are_mapped_as_by_groupby(executor, frame, name, sort, has_keys, data):
    by = data.draw(
        st.sampled_from([*frame.columns])
        | st.lists(st.sampled_from([*frame.columns]), min_size=1, unique=True)
    )
    options = {"sort": sort, "group_keys": has_keys, "observed": True}
    try:
        theirs = frame.groupby(by, **options).apply(OF_GROUPS[name])
    except Exception as error:  # such as no column that is left
        with pytest.raises((type(error), TaskError)):
            frames.map(frame, OF_GROUPS[name], by=by, executor=executor, **options)
        return
    assert is_equal(frames.map(frame, OF_GROUPS[name], by=by, executor=executor, **options), theirs)


@given(tables())
@settings(max_examples=examples(15))
def test_values_are_mapped_as_by_series_map(executor, frame):
    for name in frame.columns:
        for function in (str, repr, lambda value: value):
            assert is_equal(frames.map(frame[name], function, executor=executor), frame[name].map(function))
        if frame[name].notna().any():
            ours = frames.map(frame[name], str, executor=executor, na_action="ignore")
            assert is_equal(ours, frame[name].map(str, na_action="ignore"))


OPTIONS = [
    {},
    {"raw": True},
    {"args": (3,)},
    {"unit": "kg", "args": [1, 2]},
    {"raw": True, "unit": "g"},
    {"result_type": "expand"},
    {"result_type": "reduce", "unit": 1},
]
WITH_MORE = {
    "what it got": lambda row, *args, **kwargs: f"{type(row).__name__} {list(args)} {sorted(kwargs)}",
    "two values": lambda row, *args, **kwargs: [len(args), len(kwargs)],
    "itself": lambda row, *args, **kwargs: row,
}


@given(st.integers(0, 4), st.integers(0, 3), st.sampled_from(OPTIONS), st.sampled_from(sorted(WITH_MORE)))
@settings(max_examples=examples(40))
def test_options_mean_what_they_mean_to_apply(executor, n_rows, n_columns, options, name):
    frame = pd.DataFrame({f"c{n}": range(n, n + n_rows) for n in range(n_columns)}, index=range(n_rows))
    try:
        theirs = frame.apply(WITH_MORE[name], axis=1, **options)
    except ValueError as error:
        with pytest.raises(ValueError, match=re.escape(str(error))):
            frames.map(frame, WITH_MORE[name], executor=executor, **options)
        return
    assert is_equal(frames.map(frame, WITH_MORE[name], executor=executor, **options), theirs)


@pytest.mark.parametrize("options", [{}, {"na_action": "ignore"}, {"na_action": "ignore", "unit": "kg"}])
def test_options_mean_what_they_mean_to_series_map(options):
    series = pd.Series(pd.Categorical(["u", None, "v"], categories=["u", "v", "w"]))
    for function in (lambda value, **more: value, lambda value, **more: f"{value}{more}"):
        ours = frames.map(series, function, devices="cpu*1", **options)
        assert is_equal(ours, series.map(function, **options))


def test_a_compiler_of_functions_is_refused(executor):
    with pytest.raises(ConfigError, match="numba"):
        frames.map(pd.DataFrame({"a": [1]}), len, executor=executor, raw=True, engine="numba")


class Adder:
    def __init__(self, *, device):
        self.device = device.id

    def __call__(self, row):
        return pd.Series({"sum": row["a"] + row["b"], "device": self.device})


def test_a_class_on_devices_of_their_own():
    frame = pd.DataFrame({"a": range(40), "b": range(40)})
    mapped = frames.map(frame, Adder, devices="cpu*2")
    assert mapped["sum"].tolist() == [2 * n for n in range(40)]
    assert set(mapped["device"]) <= {"cpu:0", "cpu:1"}


def test_a_row_that_fails_is_named(executor):
    with pytest.raises(TaskError) as caught:
        frames.map(pd.DataFrame({"a": [1, 0, 2]}), lambda row: 1 / int(row["a"]), executor=executor)
    assert caught.value.index == 1
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_what_is_no_frame_is_refused(executor):
    for given_ in ([1, 2], {"a": 1}, None, 3):
        with pytest.raises(ConfigError, match="cannot be mapped"):
            frames.map(given_, len, executor=executor)
    with pytest.raises(ConfigError, match="transpose"):
        frames.map(pd.DataFrame({"a": [1]}), len, axis=0, executor=executor)


# --- polars ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def polars():
    return pytest.importorskip("polars", reason="polars is not installed: 180 MB, so it is in no group")


@pytest.fixture
def table(polars):
    kinds = {"a": polars.Int16, "b": polars.String, "c": polars.Float32}
    return polars.DataFrame({"a": [3, 1, 2, 3], "b": ["x", None, "y", "z"], "c": [0.5] * 4}, schema=kinds)


@pytest.mark.filterwarnings(
    "ignore::polars.exceptions.PolarsInefficientMapWarning"
    if importlib.util.find_spec("polars")
    else "ignore"
)
def test_frames_of_polars_are_mapped_as_by_their_methods(executor, polars, table):
    for function in (
        lambda row: row[0] * 2,
        lambda row: (row[0], row[1]),
        lambda row: (None if row[0] == 1 else row[0] / 2,),
    ):
        ours, theirs = frames.map(table, function, executor=executor), table.map_rows(function)
        assert ours.schema == theirs.schema
        assert ours.equals(theirs)
    for by in ("a", ["a", "b"]):
        for function in (
            lambda group: group.head(1),
            lambda group: group.select(polars.col("c").sum(), n=len(group)),
        ):
            theirs = table.group_by(by, maintain_order=True).map_groups(function)
            ours = frames.map(table, function, by=by, executor=executor)
            assert ours.schema == theirs.schema
            assert ours.equals(theirs)
    for name in table.columns:
        for options in ({}, {"skip_nulls": False}):
            ours = frames.map(table[name], str, executor=executor, return_dtype=polars.String, **options)
            theirs = table[name].map_elements(str, return_dtype=polars.String, **options)
            assert ours.equals(theirs)


def test_lazy_frames_and_groups_of_series_of_polars_are_refused(executor, table):
    with pytest.raises(ConfigError, match="collect"):
        frames.map(table.lazy(), len, executor=executor)
    with pytest.raises(ConfigError, match="without groups"):
        frames.map(table["a"], len, by="a", executor=executor)


@pytest.mark.filterwarnings("ignore")
def test_lists_of_polars_go_to_processes_and_arrays_are_refused(polars):
    lists = polars.Series("l", [[1], [], [2, 3], None])
    kinds = {"return_dtype": polars.List(polars.Int64)}
    ours = frames.map(lists, double, devices="cpu*1", **kinds)
    assert ours.equals(lists.map_elements(double, **kinds))
    with pytest.raises(ConfigError, match=r"cast\(polars.List\(Int8\)\)"):
        frames.map(polars.Series([[1, 2]], dtype=polars.Array(polars.Int8, 2)), len, devices="cpu*1")


def double(value):
    return value * 2
