"""A journal whose files were changed at random: what cannot be believed is refused; nothing else is lost."""

import contextlib
import json
import random
from pathlib import Path

import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.errors import ConfigError
from evenload.executor.journal import Journal

RESULTS = {f"item {at}": bytes([at]) * at * 100 for at in range(20)}
FILES = ["journal.json", "lock", "index.sqlite", "segment-000001"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a journal that has all of RESULTS."""
    path = tmp_path_factory.mktemp("whole") / "j"
    with Journal.open(path, "f") as journal:
        journal.record_many(RESULTS.items())
    return {name: (path / name).read_bytes() for name in FILES}


def write(path: Path, files: dict[str, bytes]) -> Path:
    path.mkdir(mode=0o700)
    for name, raw in files.items():
        (path / name).touch(mode=0o600)
        (path / name).write_bytes(raw)
    return path


def changed(raw: bytes, at: int, dice: random.Random) -> bytes:
    return raw[:at] + bytes([raw[at] ^ dice.randrange(1, 256)]) + raw[at + 1 :]


def check_whole(path: Path) -> None:
    with Journal.open(path, "f") as journal:
        assert sorted(journal.keys()) == sorted(RESULTS)
        assert {key: journal.done(key) for key in RESULTS} == RESULTS
        assert journal.n_damaged == 0


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 2**32), beside_a_key=st.booleans())
def test_a_changed_byte_of_the_index_costs_nothing(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes], seed: int, beside_a_key: bool
) -> None:
    raw, dice = files["index.sqlite"], random.Random(seed)
    keys = [at for at in range(len(raw)) if raw.startswith(b"item ", at)]
    at = dice.choice(keys) + dice.randrange(-6, 18) if beside_a_key else dice.randrange(len(raw))
    path = tmp_path_factory.mktemp("damaged") / "j"
    write(path, files | {"index.sqlite": changed(raw, at, dice)})
    check_whole(path)
    with Journal.open(path, "f") as journal:
        journal.record_many([(key, b"again") for key in RESULTS])
        assert {journal.done(key) for key in RESULTS} == {b"again"}


def test_the_index_of_another_journal_is_not_believed(tmp_path: Path, files: dict[str, bytes]) -> None:
    with Journal.open(tmp_path / "other", "f") as other:
        other.record_many([(f"else {at}", payload) for at, payload in enumerate(RESULTS.values())])
    index = (tmp_path / "other" / "index.sqlite").read_bytes()
    check_whole(write(tmp_path / "j", files | {"index.sqlite": index}))


@settings(max_examples=examples(60), deadline=None)
@given(
    name=st.sampled_from(["salt", "fingerprint", "checksum", "format"]),
    value=st.sampled_from(["", "abc", "ab" * 70, "ab" * 8, [1], {"a": [1]}, None, 7, {"fingerprint": "g"}]),
)
def test_facts_that_were_changed_are_refused(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes], name: str, value: object
) -> None:
    facts = json.loads(files["journal.json"]) | {name: value}
    path = tmp_path_factory.mktemp("damaged") / "j"
    write(path, files | {"journal.json": json.dumps(facts).encode()})
    if (name, value) == ("checksum", None):  # as of a journal of an older version
        return check_whole(path)
    with pytest.raises(ConfigError, match="of no use here"):
        Journal.open(path, "f")
    Journal.open(path, "f", on_change="rerun").close()
    return None


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 2**32), name=st.sampled_from(FILES))
def test_a_changed_byte_of_any_file_costs_what_it_is_about(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes], seed: int, name: str
) -> None:
    dice, raw = random.Random(seed), files[name]
    path = tmp_path_factory.mktemp("damaged") / "j"
    write(path, files | {name: changed(raw, dice.randrange(len(raw)), dice)})
    if name == "journal.json":
        with contextlib.suppress(ConfigError):  # a changed space is still one
            check_whole(path)
    elif name == "segment-000001":
        with Journal.open(path, "f") as journal:
            got = {key: journal.done(key) for key in RESULTS}
        lost = {key for key in RESULTS if got[key] is None}
        assert got == RESULTS | dict.fromkeys(lost)
        assert len(lost) == 1 == journal.n_damaged
    else:
        check_whole(path)
