"""Local copies of remote files, in a store in memory and from a server that misbehaves."""

import functools
import json
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from pipeline.local_server import LocalServer

from evenload.errors import ConfigError, MissingExtra, SpecError
from evenload.pipeline import Pipeline
from evenload.pipeline.job.remote_files import RemoteCopies, is_remote

fsspec = pytest.importorskip("fsspec", reason="the extra files is not installed")


@pytest.fixture
def store() -> Iterator[Any]:
    """A store in memory with nothing in it."""
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]
    yield memory
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_copy_is_made_once_and_again_when_the_store_says_that_it_changed(
    tmp_path, store, monkeypatch
) -> None:
    store.pipe("/b/a.txt", b"one")
    kept = RemoteCopies(tmp_path / "copies")
    copy = kept.of("memory://b/a.txt")
    assert (copy.name, copy.read_bytes()) == ("a.txt", b"one")
    monkeypatch.setattr(RemoteCopies, "_fetch", lambda *args: pytest.fail("it is there"))
    assert RemoteCopies(tmp_path / "copies").of("memory://b/a.txt") == copy
    monkeypatch.undo()
    store.pipe("/b/a.txt", b"two!")
    assert kept.of("memory://b/a.txt").read_bytes() == b"two!"
    copy.unlink()
    assert kept.of("memory://b/a.txt").read_bytes() == b"two!"
    (copy.parent / ".note.json").write_text("[" * 100_000)
    assert kept.of("memory://b/a.txt").read_bytes() == b"two!", "a damaged note is not believed"
    assert not list((tmp_path / "copies").rglob("*.tmp"))


def test_what_is_too_long_a_folder_or_not_there_is_refused(tmp_path, store) -> None:
    store.pipe("/b/long", b"x" * 100)
    kept = RemoteCopies(tmp_path / "copies", most_bytes=99)
    for url, said in (("long", "longer than 99B"), ("none", "cannot be read"), ("", "is a folder")):
        with pytest.raises(ConfigError, match=said):
            kept.of(f"memory://b/{url}")
    assert not [path for path in (tmp_path / "copies").rglob("*") if path.is_file()]
    assert kept.of_all(["memory://b/none", "memory://b/none"]).keys() == {"memory://b/none"}


def test_the_most_bytes_of_a_file_are_said_in_the_job(tmp_path: Path, store) -> None:
    store.pipe("/b/a.txt", b"x" * 100)
    with pytest.raises(SpecError, match=r"longer than 99B.*file_limit"):
        job(tmp_path, {"folder": "memory://b", "file_limit": "99B"})
    assert len(job(tmp_path, {"folder": "memory://b", "file_limit": "100B"}).items) == 1


def test_a_store_that_understates_a_size_fills_no_disk(tmp_path, store, monkeypatch) -> None:
    store.pipe("/b/long", b"x" * 100)
    monkeypatch.setattr(type(store), "info", lambda self, path: {"type": "file", "size": None, "created": 1})
    with pytest.raises(ConfigError, match="longer than 99B"):
        RemoteCopies(tmp_path / "copies", most_bytes=99).of("memory://b/long")
    monkeypatch.setattr(type(store), "info", lambda self, path: {"type": "file", "size": 150, "created": 1})
    with pytest.raises(ConfigError, match="gave 100 bytes of 150"):
        RemoteCopies(tmp_path / "copies").of("memory://b/long")
    assert not [path for path in (tmp_path / "copies").rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ssh://host/x", "zip://a::memory://b", "s3://a\nb", "reference://x"]
)
def test_addresses_that_reach_elsewhere_are_refused(tmp_path: Path, url: str) -> None:
    assert is_remote(url)
    with pytest.raises(ConfigError, match="is of no kind that can be fetched"):
        RemoteCopies(tmp_path).of(url)


@pytest.mark.parametrize("name", ["..", ".hidden", "a b\u202e", "x" * 500, "%2e%2e", "C:nul"])
def test_a_strange_name_stays_below_its_folder(tmp_path: Path, name: str) -> None:
    place = RemoteCopies(tmp_path)._place(f"memory://bucket/{name}")
    assert place.parent.parent.parent == tmp_path
    assert place.name.isascii()
    assert not place.name.startswith(".")
    assert len(place.name) <= 100


def test_a_copy_is_this_users_alone(tmp_path, store) -> None:
    store.pipe("/b/a", b"1")
    (tmp_path / "copies").mkdir(mode=0o777)
    (tmp_path / "copies").chmod(0o777)
    with pytest.raises(ConfigError, match="open to others"):
        RemoteCopies(tmp_path / "copies").of("memory://b/a")


def test_a_package_that_is_missing_is_told_with_its_install_line(tmp_path, monkeypatch) -> None:
    def absent(url: str) -> None:
        raise ImportError("Please install s3fs")

    monkeypatch.setattr(fsspec.core, "url_to_fs", absent)
    with pytest.raises(MissingExtra, match=r"evenload\[files\]"):
        RemoteCopies(tmp_path).of("s3://bucket/a")


STAGE = """
from pathlib import Path
class Read:
    def __call__(self, inputs, item):
        return {"text": Path(inputs["path"]).read_text()}
"""


def job(folder: Path, inputs: dict[str, Any]) -> Pipeline:
    (folder / "reading.py").write_text(STAGE)
    stages = '[{name: read, target: "reading.py:Read"}]\nreport: {html: false, trace: false}\n'
    (folder / "job.yaml").write_text(
        f"version: 1\njob: {{name: far, inputs: {json.dumps(inputs)}}}\ndevices: cpu*1\nstages: {stages}"
    )
    return Pipeline.from_yaml(folder / "job.yaml")


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ({"folder": "memory://b/texts"}, {"a": "A", "b": "B"}),
        ({"glob": "memory://b/texts/**/*.txt"}, {"a": "A", "b": "B", "deep/c": "C"}),
        ({"glob": "memory://b/*/a.*"}, {"texts/a": "A"}),
        ({"jsonl": "memory://b/rows.jsonl"}, {"one": "A", "two": "C"}),
        ({"jsonl": "rows.jsonl"}, {"one": "A", "two": "B"}),
    ],
)
def test_items_come_from_remote_folders_patterns_and_tables(tmp_path: Path, store, inputs, expected) -> None:
    texts = {"texts/a.txt": "A", "texts/b.txt": "B", "texts/.hidden": "H", "texts/deep/c.txt": "C"}
    store.pipe({f"/b/{name}": text.encode() for name, text in texts.items()})
    rows = [{"id": "one", "path": "texts/a.txt"}, {"id": "two", "path": "memory://b/texts/deep/c.txt"}]
    store.pipe("/b/rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
    (tmp_path / "near.txt").write_text("A")
    near = [{"id": "one", "path": "near.txt"}, {"id": "two", "path": "memory://b/texts/b.txt"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in near))
    result = job(tmp_path, inputs).run(backend="inline")
    assert {row.id: row.outputs["text"] for row in result} == expected


def test_a_changed_file_is_a_changed_input_and_the_others_are_kept(tmp_path: Path, store) -> None:
    for name in "abc":
        store.pipe(f"/b/{name}.txt", name.encode())
    job(tmp_path, {"folder": "memory://b"}).run(backend="inline")
    store.pipe("/b/b.txt", b"new")
    again = job(tmp_path, {"folder": "memory://b"}).run(backend="inline")
    assert [row.outputs["text"] for row in again] == ["a", "new", "c"]
    assert again.n_restored == 2


@pytest.mark.parametrize(
    ("inputs", "rows", "said"),
    [
        ({"jsonl": "memory://b/none.jsonl"}, "", "cannot be read"),
        ({"folder": "memory://b/none"}, "", "cannot be read"),
        ({"glob": "memory://b/*.none"}, "", "there is no file at memory://b/*.none"),
        *(({"jsonl": "memory://b/rows.jsonl"}, json.dumps({"id": "x", "path": path}), "leads out of")
          for path in ("../up", "a/../../x", "/etc")),
        ({"jsonl": "memory://b/rows.jsonl"}, '{"id": "x", "path": "none"}', "item 'x', path"),
        ({"jsonl": "memory://b/rows.jsonl"}, '{"id": "x", "path": "ftp://h/x"}', "no kind that can be"),
    ],
)  # fmt: skip
def test_inputs_that_cannot_be_had_are_faults_before_any_work(tmp_path, store, inputs, rows, said) -> None:
    store.pipe("/b/rows.jsonl", rows.encode())
    with pytest.raises(SpecError) as refused:
        job(tmp_path, inputs)
    assert any(said in f"{place} {fault}" for place, fault in refused.value.faults), refused.value.faults


class Tagged(SimpleHTTPRequestHandler):
    """Files of a folder, each with a tag that another content changes."""

    def log_message(self, *args: Any) -> None:
        pass

    def end_headers(self) -> None:
        file = Path(self.translate_path(self.path))
        self.send_header("ETag", file.read_text() if file.is_file() else "none")
        super().end_headers()


def test_a_file_of_a_server_is_fetched_again_when_its_tag_changes(tmp_path: Path) -> None:
    (tmp_path / "served").mkdir()
    file = tmp_path / "served" / "a.txt"
    file.write_text("far away")
    with LocalServer(functools.partial(Tagged, directory=file.parent)).serving() as server:  # type: ignore
        kept = RemoteCopies(tmp_path / "copies")
        for text in ("far away", "far away", "elsewhere"):
            file.write_text(text)
            assert kept.of(f"{server.url}/a.txt").read_text() == text
        with pytest.raises(ConfigError, match="cannot be read"):
            kept.of(f"{server.url}/none.txt")
