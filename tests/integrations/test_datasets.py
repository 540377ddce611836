"""``evenload.datasets.map`` gives what ``Dataset.map`` does, from several devices."""

import functools
import importlib
import os
import shutil
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from examples_count import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import evenload
from evenload.errors import ConfigError, TaskError, UnknownName

datasets = pytest.importorskip("datasets")
models = importlib.import_module("integrations.dataset_models")
evenload_datasets = importlib.import_module("evenload.datasets")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module", autouse=True)
def quiet():
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


@pytest.fixture(scope="module")
def executor():
    with evenload.Executor("cpu*2", backend="inline") as executor:
        yield executor


def table_of(n_rows):
    return {"text": ["ab" * (n % 4) for n in range(n_rows)], "number": list(range(n_rows))}


@pytest.fixture
def stored(tmp_path):
    datasets.Dataset.from_dict(table_of(30)).save_to_disk(tmp_path / "stored")
    return datasets.load_from_disk(tmp_path / "stored")


def is_equal(one, other):
    assert one.features == other.features
    assert one.data.schema.equals(other.data.schema)
    assert repr(one.data.to_pydict()) == repr(other.data.to_pydict())  # nan is nan, and -0.0 is not 0.0
    assert one.format == other.format
    return True


TEXTS = st.text(st.characters(codec="utf-8"), max_size=4)
COLUMNS = {
    "whole": (st.integers(-(2**60), 2**60), "int64"),
    "small": (st.none() | st.integers(-100, 100), "int8"),
    "real": (st.none() | st.floats(), "float32"),
    "flag": (st.none() | st.booleans(), "bool"),
    "text": (st.none() | TEXTS, "string"),
    "bytes": (st.binary(max_size=4), "binary"),
}


@st.composite
def tables(draw):
    """A dataset of random columns and types; some of it selected, in another order."""
    names = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, unique=True))
    n_rows = draw(st.integers(0, 12))
    columns = {name: draw(st.lists(COLUMNS[name][0], min_size=n_rows, max_size=n_rows)) for name in names}
    if draw(st.booleans()):
        lists = st.lists(st.integers(0, 9), max_size=3)
        columns["lists"] = draw(st.lists(lists, min_size=n_rows, max_size=n_rows))
    features = {name: datasets.Value(COLUMNS[name][1]) for name in names}
    if "lists" in columns:
        features["lists"] = datasets.List(datasets.Value("int16"))
    made = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    if n_rows and draw(st.booleans()):
        made = made.select(draw(st.lists(st.integers(0, n_rows - 1), min_size=1, max_size=n_rows)))
    return made


def touch(batch, places, *, plan):
    """Read, change, replace, remove and add columns of a batch, as ``plan`` says for each name."""
    output = {"place": list(places)}
    for name, what in plan.items():
        if what == "read":
            list(batch[name])
        elif what == "turn":
            batch[name] = batch[name][::-1]
        elif what == "turn in place":
            batch[name].reverse()
        elif what == "return":
            output[name] = batch[name][::-1]
        elif what == "as text":
            output[name] = [None if value is None else repr(value) for value in batch[name]]
        elif what == "remove":
            del batch[name]
    if plan.get("returns") == "batch":
        batch["place"] = output["place"]
        return batch
    return None if plan.get("returns") == "nothing" else output


@given(st.data())
@settings(
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_equals_the_map_of_datasets(executor, data):
    dataset = data.draw(tables())
    todo = st.sampled_from(["leave", "read", "turn", "turn in place", "return", "as text", "remove"])
    plan = {name: data.draw(todo) for name in dataset.column_names}
    plan["returns"] = data.draw(st.sampled_from(["output", "batch", "nothing"]))
    kept = [name for name in dataset.column_names if plan[name] != "remove"]
    options = {
        "batch_size": data.draw(st.integers(1, 15)),
        "with_indices": True,
        "remove_columns": data.draw(st.none() | st.lists(st.sampled_from(kept), unique=True))
        if kept
        else None,
        "drop_last_batch": data.draw(st.booleans()),
        "fn_kwargs": {"plan": plan},
    }
    theirs = dataset.map(touch, batched=True, load_from_cache_file=False, **options)
    ours = evenload_datasets.map(dataset, touch, executor=executor, load_from_cache_file=False, **options)
    assert is_equal(ours, theirs)


@pytest.mark.parametrize("form", [None, "numpy", "pandas", "arrow"])
@pytest.mark.parametrize(
    "function",
    [models.in_place, models.in_place_and_other, models.drops, models.a_copy, models.arrays, models.nothing,
     models.nested, models.other_rows],
)  # fmt: skip
def test_what_a_function_does_to_a_batch_is_done(executor, stored, function, form):
    dataset = stored.with_format(form)
    removed = ["text", "number"] if function is models.other_rows else None
    options = {"batch_size": 7, "remove_columns": removed}
    try:
        theirs = dataset.map(function, batched=True, load_from_cache_file=False, **options)
    except Exception as error:  # a function that cannot use this format fails there as here
        with pytest.raises((TaskError, type(error))):
            evenload_datasets.map(dataset, function, executor=executor, load_from_cache_file=False, **options)
        return
    ours = evenload_datasets.map(dataset, function, executor=executor, load_from_cache_file=False, **options)
    assert is_equal(ours, theirs)


def as_table(table):
    return pa.table({"double": pa.compute.multiply(table["number"], 2)})


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (models.with_places, {"with_indices": True, "fn_kwargs": {"add": 5}}),
        (models.of_columns, {"input_columns": ["text", "number"]}),
        (models.of_a_row, {"batched": False}),
        (models.of_a_row_in_place, {"batched": False, "remove_columns": "number"}),
        (models.arrays, {"features": {"text": "string", "number": "int32", "vector": "float64"}}),
        (models.in_place, {"batch_size": None, "keep_in_memory": True}),
        (models.in_place, {"batch_size": 0}),
        (models.in_place, {"batch_size": -1, "drop_last_batch": True}),
    ],
)
def test_arguments_mean_what_they_mean_there(executor, stored, function, options):
    if "features" in options:
        kinds = {name: datasets.Value(kind) for name, kind in options["features"].items()}
        options = {"features": datasets.Features(kinds | {"vector": datasets.List(kinds["vector"])})}
    options = {"batched": True, "load_from_cache_file": False, **options}
    assert is_equal(evenload_datasets.map(stored, function, executor=executor, **options),
                    stored.map(function, **options))  # fmt: skip


def test_a_table_in_and_out(executor, stored):
    dataset = stored.with_format("arrow")
    assert is_equal(evenload_datasets.map(dataset, as_table, executor=executor, batch_size=4),
                    dataset.map(as_table, batched=True, batch_size=4))  # fmt: skip


def test_a_model_is_built_once_and_what_was_done_is_not_done_again(stored, tmp_path):
    notes = tmp_path / "notes"
    notes.mkdir()
    model = functools.partial(models.Counter, str(notes))
    splits = datasets.DatasetDict(train=stored, test=stored.select(range(7)))
    with evenload.Executor("cpu*2", backend="inline") as executor:
        mapped = evenload_datasets.map(splits, model, executor=executor, batch_size=3)
    assert {name: len(one) for name, one in mapped.items()} == {"train": 30, "test": 7}
    done = [name.split("-")[0] for name in os.listdir(notes)]
    assert 1 <= done.count("built") == done.count("closed") <= 2  # for both splits
    assert done.count("called") == 10 + 3
    again = evenload_datasets.map(splits, model, devices="cpu*2", batch_size=3)
    assert len(os.listdir(notes)) == len(done)  # from the cache files: no worker was started
    assert [one.cache_files for one in again.values()] == [one.cache_files for one in mapped.values()]
    assert again["train"]["device"] == mapped["train"]["device"]
    folder = os.path.dirname(stored.cache_files[0]["filename"])
    assert {os.path.dirname(one.cache_files[0]["filename"]) for one in mapped.values()} == {folder}


MODULE = "def scale(batch):\n    return {{'number': [{factor} * number for number in batch['number']]}}\n"


def test_other_code_and_other_arguments_are_done_anew(executor, stored, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    seen = []
    for factor in (2, 2, 3):  # code of a module that is imported by name
        (tmp_path / "scaling.py").write_text(MODULE.format(factor=factor))
        sys.modules.pop("scaling", None)
        importlib.invalidate_caches()
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        scale = importlib.import_module("scaling").scale
        mapped = evenload_datasets.map(stored, scale, executor=executor)
        assert mapped["number"][:] == [factor * number for number in range(30)]
        seen.append(mapped.cache_files[0]["filename"])
    sys.modules.pop("scaling", None)
    assert seen[0] == seen[1] != seen[2]
    files = set()
    for add in (1, 1, 2):
        add_places = {"with_indices": True, "fn_kwargs": {"add": add}}
        mapped = evenload_datasets.map(stored, models.with_places, executor=executor, **add_places)
        files.add(mapped.cache_files[0]["filename"])
    assert len(files) == 2


def test_a_batch_that_fails_leaves_no_cache_file(executor, stored):
    folder = os.path.dirname(stored.cache_files[0]["filename"])
    with pytest.raises(TaskError, match="seven") as caught:
        evenload_datasets.map(stored, models.fails, executor=executor, batch_size=5)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert not [name for name in os.listdir(folder) if name.startswith("cache-")]


NOTED = """
import os  # which has what happens at one of the batches: it would count as code in a module of one's own
def scale(batch):
    with open(os.environ["EL_NOTES"], "a") as notes:
        notes.write(f"{batch['number'][0]}\\n")
    if batch["number"][0] == int(os.environ["EL_STOP_AT"]):
        os.el_stop()
    return {"number": [3 * number for number in batch["number"]], "half": [n / 2 for n in batch["number"]]}
"""


def parts_in(folder):
    return sorted(folder.glob("evenload-*.batches"))


@pytest.fixture
def noted(stored, tmp_path, monkeypatch):
    """A module whose function notes the first row of each batch; and what it has noted since last asked."""
    (tmp_path / "el_noted.py").write_text(NOTED)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("EL_NOTES", str(tmp_path / "notes"))
    monkeypatch.setenv("EL_STOP_AT", "-1")
    module = importlib.import_module("el_noted")
    shutil.copytree(tmp_path / "stored", tmp_path / "clean")

    def rows():
        text = (tmp_path / "notes").read_text().split() if (tmp_path / "notes").exists() else []
        (tmp_path / "notes").unlink(missing_ok=True)
        return sorted(map(int, text))

    yield module, rows
    sys.modules.pop("el_noted", None)


def is_as_in_a_clean_folder(mapped, scale, executor, tmp_path):
    """Byte for byte, and equal to what the library makes; nothing kept is left."""
    clean = datasets.load_from_disk(tmp_path / "clean")
    once = evenload_datasets.map(clean, scale, executor=executor, batch_size=3)
    files = [one.cache_files[0]["filename"] for one in (mapped, once)]
    assert [os.path.basename(file) for file in files] == [os.path.basename(files[0])] * 2
    assert Path(files[0]).read_bytes() == Path(files[1]).read_bytes()
    assert parts_in(tmp_path / "stored") == parts_in(tmp_path / "clean") == []
    return is_equal(mapped, clean.map(scale, batched=True, batch_size=3, load_from_cache_file=False))


@pytest.mark.parametrize("is_damaged", [False, True])
def test_batches_before_one_that_failed_are_taken_up(
    executor, stored, tmp_path, monkeypatch, noted, is_damaged
):
    module, rows = noted

    def fail():
        raise RuntimeError("no more")

    monkeypatch.setenv("EL_STOP_AT", "24")
    monkeypatch.setattr(os, "el_stop", fail, raising=False)
    with pytest.raises(TaskError):
        evenload_datasets.map(stored, module.scale, executor=executor, batch_size=3)
    done = set(rows()) - {24}
    assert done
    monkeypatch.setenv("EL_STOP_AT", "-1")
    if is_damaged:
        (segment,) = parts_in(tmp_path / "stored")[0].glob("segment-*")
        raw = bytearray(segment.read_bytes())
        raw[len(raw) // 2] ^= 1
        segment.write_bytes(raw)
    mapped = evenload_datasets.map(stored, module.scale, executor=executor, batch_size=3)
    assert len(done & set(rows())) == is_damaged
    assert is_as_in_a_clean_folder(mapped, module.scale, executor, tmp_path)


def test_two_programs_at_once_have_the_same(executor, stored, tmp_path, monkeypatch, noted):
    """The other one is this one, in the middle of its map."""
    module, rows = noted
    monkeypatch.setenv("EL_STOP_AT", "12")
    inner = []

    def again():
        monkeypatch.setenv("EL_STOP_AT", "-1")
        other = datasets.load_from_disk(tmp_path / "stored")
        with evenload.Executor("cpu*2", backend="inline") as own:
            inner.append(evenload_datasets.map(other, module.scale, executor=own, batch_size=3))
        assert len(parts_in(tmp_path / "stored")) == 1

    monkeypatch.setattr(os, "el_stop", again, raising=False)
    mapped = evenload_datasets.map(stored, module.scale, executor=executor, batch_size=3)
    assert len(rows()) == 20
    assert is_equal(inner[0], mapped)
    assert is_as_in_a_clean_folder(mapped, module.scale, executor, tmp_path)


@pytest.mark.parametrize("form", [None, "numpy"])
@pytest.mark.parametrize(
    ("function", "options"),
    [
        (models.in_place, {}),
        (models.in_place_and_other, {"remove_columns": ["text"]}),
        (models.with_places, {"with_indices": True, "fn_kwargs": {"add": 5}}),
        (models.of_columns, {"input_columns": ["text", "number"], "drop_last_batch": True}),
        (models.other_rows, {"remove_columns": ["text", "number"]}),
        (models.of_a_row, {"batched": False}),
    ],
)
def test_a_stream_is_mapped_while_it_is_read(executor, stored, function, options, form):
    stream = stored.to_iterable_dataset().with_format(form)
    options = {"batched": True, "batch_size": 4, **options}
    if form == "numpy" and function is models.in_place:
        pytest.skip("texts of numpy are not of this function")
    theirs = list(stream.map(function, **options))
    ours = evenload_datasets.map(stream, function, executor=executor, **options)
    assert isinstance(ours, datasets.IterableDataset)
    assert repr(list(ours)) == repr(theirs)
    assert repr(list(ours)) == repr(theirs)  # and read again


def test_an_endless_stream_is_left_after_some_rows(executor):
    def numbers():
        number = 0
        while True:
            yield {"number": number, "text": "a"}
            number += 1

    stream = datasets.IterableDataset.from_generator(numbers)
    mapped = evenload_datasets.map(stream, models.in_place_and_other, executor=executor, batch_size=2)
    assert [row["n"] for row in mapped.take(5)] == [1] * 5
    assert [row["n"] for row in mapped.take(5)] == [1] * 5


def test_a_streams_function_has_to_return_columns_of_one_length(executor, stored):
    stream = stored.to_iterable_dataset()
    for function, words in ((models.nothing, "NoneType"), (models.other_rows, "different lengths")):
        with pytest.raises(TaskError, match=words):
            list(evenload_datasets.map(stream, function, executor=executor, batch_size=4))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_proc": 4}, 'devices="cpu\\*4"'),
        ({"with_rank": True}, "current_device"),
        ({"batch_size": 2.5}, "at least 1"),
        ({"batch_size": "many"}, "at least 1"),
        ({"batched": "yes"}, "neither True nor False"),
        ({"remove_columns": 3}, "no sequence"),
        ({"input_columns": [3]}, "names of columns"),
        ({"devices": "moon"}, "moon"),
        ({"input_columns": "txt"}, "did you mean 'text'"),
        ({"remove_columns": ["number", "nummer"]}, "unknown column 'nummer'"),
        ({"fn_kwargs": 3}, "names to values"),
        ({"features": {"a": "int"}}, "datasets.Features"),
        ({"executor": 3}, "evenload.Executor"),
    ],
)
def test_what_cannot_be_is_refused(stored, options, words):
    with pytest.raises((ConfigError, UnknownName), match=words):
        evenload_datasets.map(stored, models.nothing, **options)


def test_unknown_arguments_and_no_datasets_are_refused(executor, stored):
    with pytest.raises(UnknownName, match="did you mean 'desc'"):
        evenload_datasets.map(stored, models.nothing, executor=executor, des="x")
    with pytest.raises(UnknownName, match="cache_file_name"):
        evenload_datasets.map(stored.to_iterable_dataset(), models.nothing, cache_file_name="x.arrow")
    with pytest.raises(ConfigError, match="no dataset"):
        evenload_datasets.map([1, 2], models.nothing)
    with pytest.raises(ConfigError, match="cannot be called"):
        evenload_datasets.map(stored, 3)


def met_another(row: dict, folder: str) -> dict:
    """A row that ends when two processes work at rows, so that it never does if one has them all."""
    (Path(folder) / str(os.getpid())).touch()
    until_s = time.monotonic() + 500
    while len(os.listdir(folder)) < 2 and time.monotonic() < until_s:
        time.sleep(0.01)
    return {"n_met": len(os.listdir(folder))}


@pytest.mark.usefixtures("forked_servers")
def test_few_rows_that_are_mapped_one_by_one_are_for_all_devices(stored, tmp_path):
    """Not one device for up to 1,000 rows, which is datasets' own default of a batch."""
    (tmp_path / "met").mkdir()
    given = {"batched": False, "fn_kwargs": {"folder": str(tmp_path / "met")}}
    assert set(evenload_datasets.map(stored, met_another, devices="cpu*2", **given)["n_met"]) == {2}
