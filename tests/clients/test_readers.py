"""Clients from files: what was written is read, and what is damaged is named."""

import json

import numpy as np
import pytest
import torch
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload._optional import is_installed
from evenload.clients import SGD, Recipe, train
from evenload.clients.readers import read_dataset, read_leaf, read_npz, read_text, standard_library
from evenload.errors import ConfigError, FormatError


def leaf(path, users):
    page = {
        "users": list(users),
        "num_samples": [len(u["y"]) for u in users.values()],
        "user_data": users,
    }
    path.write_text(json.dumps(page))


def test_leaf_users_of_several_files_are_one_client_each(tmp_path):
    leaf(tmp_path / "all_data_0.json", {"f1": {"x": [[0.0, 1, 2, 3]], "y": [1]}})
    leaf(
        tmp_path / "all_data_1.json",
        {"f1": {"x": [[4, 5, 6, 7.0]], "y": [0]}, "f2": {"x": [[1] * 4] * 3, "y": [2] * 3}},
    )
    found = read_leaf(tmp_path, shape=(2, 2))
    assert list(found) == ["f1", "f2"]
    assert torch.equal(found["f1"].x, torch.arange(8.0).view(2, 2, 2))
    assert found["f1"].y.tolist() == [1, 0]
    assert (len(found["f2"]), found["f2"].y.dtype) == (3, torch.int64)
    assert found["f2"].x.dtype == found["f1"].x.dtype == torch.float32


@pytest.mark.parametrize(
    ("users", "words"),
    [
        ({"a": {"x": [[1, 2], [3]], "y": [0, 1]}}, "no regular x and y"),
        ({"a": {"x": ["some text"], "y": [0]}}, "has text"),
        ({"a": {"x": [[1, 2]], "y": [0, 1]}}, "1 inputs and 2 targets"),
        ({"a": {"y": [0]}}, "no regular x and y"),
    ],
)
def test_leaf_files_that_are_wrong_name_the_user(tmp_path, users, words):
    page = {"user_data": users}
    (tmp_path / "all_data.json").write_text(json.dumps(page))
    with pytest.raises(FormatError, match=words) as caught:
        read_leaf(tmp_path)
    assert "'a'" in str(caught.value)


def test_what_is_no_leaf_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"no \*\.json"):
        read_leaf(tmp_path)
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(FormatError, match="not JSON"):
        read_leaf(tmp_path)
    (tmp_path / "x.json").write_text("[1]")
    with pytest.raises(FormatError, match="no 'user_data'"):
        read_leaf(tmp_path / "x.json")
    with pytest.raises(FormatError, match="cannot be read"):
        read_leaf(tmp_path / "none.json")


@given(owners=st.lists(st.integers(0, 5), min_size=1, max_size=30))
@settings(max_examples=examples(20), deadline=None)
def test_npz_rows_go_to_their_owners_once(owners, tmp_path_factory):
    path = tmp_path_factory.mktemp("npz") / "rows.npz"
    x = np.arange(2.0 * len(owners)).reshape(-1, 2)
    np.savez(path, x=x, y=np.arange(len(owners)), client=np.array(owners))
    found = read_npz(path)
    assert sorted(found) == sorted({str(o) for o in owners})
    for name, rows in found.items():
        inputs, targets = rows.at(np.arange(len(rows)))
        assert [owners[t] for t in targets.tolist()] == [int(name)] * len(rows)
        assert torch.equal(inputs, torch.from_numpy(x[targets.numpy()]).float())


def test_npz_files_that_are_wrong_say_what_they_have(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros(3), y=np.zeros(2), client=np.zeros(3))
    with pytest.raises(FormatError, match="lengths differ"):
        read_npz(tmp_path / "a.npz")
    with pytest.raises(FormatError, match="no array 'user'; it has: x, y, client"):
        read_npz(tmp_path / "a.npz", client="user")
    np.savez(tmp_path / "b.npz", x=np.array([{}], object), y=np.zeros(1), client=np.zeros(1))
    with pytest.raises(FormatError, match="not an npz file of plain arrays"):
        read_npz(tmp_path / "b.npz")
    whole = (tmp_path / "a.npz").read_bytes()
    for content in (b"no", b"", whole[: len(whole) // 2]):
        (tmp_path / "c.npz").write_bytes(content)
        with pytest.raises(FormatError, match="not an npz file"):
            read_npz(tmp_path / "c.npz")
    np.save(tmp_path / "d.npy", np.zeros(3))
    with pytest.raises(FormatError, match="not an npz file"):
        read_npz(tmp_path / "d.npy")
    np.savez(tmp_path / "e.npz", x=np.zeros(()), y=np.zeros(1), client=np.zeros(1))
    with pytest.raises(FormatError, match="single value"):
        read_npz(tmp_path / "e.npz")
    np.savez(tmp_path / "f.npz", x=np.array(["a"]), y=np.zeros(1), client=np.zeros(1))
    with pytest.raises(FormatError, match="not numbers"):
        read_npz(tmp_path / "f.npz")


def test_leaf_rows_that_change_shape_between_files_are_named(tmp_path):
    leaf(tmp_path / "a.json", {"u": {"x": [[1.0, 2]], "y": [0]}})
    leaf(tmp_path / "b.json", {"u": {"x": [[1.0, 2, 3]], "y": [0]}})
    with pytest.raises(FormatError, match="user 'u' differ in shape"):
        read_leaf(tmp_path)


def test_bytes_are_pictures_and_wider_integers_are_tokens(tmp_path):
    for kind, expected in ((np.uint8, torch.float32), (np.int32, torch.int64), (np.float64, torch.float32)):
        np.savez(tmp_path / "a.npz", x=np.zeros((2, 2), kind), y=np.zeros(2, np.uint8), client=np.zeros(2))
        rows = read_npz(tmp_path / "a.npz")["0.0"]
        assert (rows.x.dtype, rows.y.dtype) == (expected, torch.int64)


@pytest.mark.skipif(not is_installed("datasets"), reason="datasets is not installed")
def test_datasets_from_disk_are_dealt_by_a_column(tmp_path):
    import datasets

    rows = {
        "pixels": [[float(i), 0.5] for i in range(6)],
        "digit": [0, 1, 2, 0, 1, 2],
        "writer": list("abbaac"),
    }
    datasets.Dataset.from_dict(rows).save_to_disk(str(tmp_path / "set"))
    found = read_dataset(tmp_path / "set", x="pixels", y="digit", client="writer")
    assert {name: len(r) for name, r in found.items()} == {"a": 3, "b": 2, "c": 1}
    inputs, targets = found["b"].at(np.arange(2))
    assert inputs.tolist() == [[1.0, 0.5], [2.0, 0.5]]
    assert targets.tolist() == [1, 2]
    assert len(read_dataset(tmp_path / "set", x="pixels", y="digit")["0"]) == 6
    with pytest.raises(FormatError, match="no column 'label'"):
        read_dataset(tmp_path / "set", x="pixels", y="label")
    with pytest.raises(FormatError, match="no dataset on disk"):
        read_dataset(tmp_path / "none", x="pixels", y="digit")


def test_text_is_windows_and_the_byte_that_follows(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"abcdefgh")
    (tmp_path / "b.txt").write_bytes(b"abc")
    found = read_text([tmp_path / "a.txt", tmp_path / "b.txt"], length=3)
    assert list(found) == [str(tmp_path / "a.txt")]
    rows = found[str(tmp_path / "a.txt")]
    assert bytes(rows.x[0].tolist()) + b"|" + bytes(rows.x[1].tolist()) == b"abc|def"
    assert bytes(rows.y.tolist()) == b"dg"
    with pytest.raises(ConfigError, match="no text to read"):
        read_text([], length=0)


def test_the_standard_library_trains_a_model_of_bytes():
    found = standard_library(length=32, most_bytes=4096)
    assert len(found) > 50
    assert len({len(rows) for rows in found.values()}) > 10

    def model():
        return torch.nn.Sequential(torch.nn.Embedding(256, 4), torch.nn.Flatten(), torch.nn.Linear(128, 256))

    recipe = Recipe(optimizer=SGD(0.5), batch_size=16)
    run = train(model, list(found.values())[:6], recipe, strategy="fused:6")
    assert all(r.status == "ok" for r in run)
