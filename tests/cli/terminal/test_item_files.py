"""Rows in and out where the text, the file or the reader is not what one hopes for."""

import io
import json
import os
import sys
import threading
from pathlib import Path

import pytest

from evenload.cli.terminal.item_files import RowWriter, count_items, row_json, stream_items
from evenload.errors import ConfigError


@pytest.mark.parametrize("suffix", ["txt", "jsonl", "csv", "json"])
def test_text_that_is_not_utf8_is_told_with_its_line(tmp_path, suffix):
    file = tmp_path / f"words.{suffix}"
    file.write_bytes(b"1\n2\ncaf\xe9\n")
    with pytest.raises(ConfigError, match=rf"words.{suffix}, line [123]") as caught:
        list(stream_items(str(file)))
    if suffix in ("txt", "csv", "json"):
        assert "line 3: byte 4 (0xe9) is not UTF-8" in caught.value.message
        assert "iconv" in (caught.value.hint or "")


def test_standard_input_is_utf8_too(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("é\n".encode() + b"\xff\n"), "ascii"))
    items = stream_items("-")
    assert next(items) == "é"
    with pytest.raises(ConfigError, match="-, line 2: byte 1"):
        next(items)


@pytest.mark.parametrize(
    ("name", "text"), [("a.csv", 'a\n"' + "x" * 140_000 + '"\n'), ("a.jsonl", "[" * 99_999)]
)
def test_what_the_parser_gives_up_on_is_told_with_the_file(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=name):
        list(stream_items(str(tmp_path / name)))


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="no file here that opens and cannot be read")
def test_an_error_of_the_disk_names_the_file():
    with pytest.raises(ConfigError, match="/proc/self/mem cannot be read"):
        list(stream_items("/proc/self/mem"))
    with pytest.raises(ConfigError, match="/proc/self/mem cannot be read"):
        count_items("/proc/self/mem")


def test_items_from_a_fifo_are_not_lost_by_looking_first(tmp_path):
    os.mkfifo(tmp_path / "items")
    writer = threading.Thread(target=(tmp_path / "items").write_text, args=("a\nb\n",))
    writer.start()
    assert list(stream_items(str(tmp_path / "items"))) == ["a", "b"]
    writer.join(timeout=500)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
@pytest.mark.parametrize("value", ["plain", "é", "\udc80 alone", "😀", {"ключ": "\ud83d"}])
def test_every_result_can_be_written_and_read_again(monkeypatch, value, encoding):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding))
    writer = RowWriter(None)
    writer.write(row_json(value, "utf-8"))
    writer.close()
    assert json.loads(raw.getvalue().decode(encoding)) == value
    assert json.loads(row_json(value, encoding).encode(encoding).decode(encoding)) == value


def write_rows(path: Path) -> None:
    writer = RowWriter(path)
    writer.write("1")
    writer.write("2")
    writer.close()


def test_a_symlink_stays_and_what_it_leads_to_is_written(tmp_path):
    (tmp_path / "folder").mkdir()
    link, real = tmp_path / "link", tmp_path / "folder" / "real"
    link.symlink_to(real)  # leads to nothing yet
    for _ in range(2):
        write_rows(link)
        assert link.is_symlink()
        assert real.read_text() == "1\n2\n"
        real.write_text("older")
    assert sorted(file.name for file in tmp_path.rglob("*")) == ["folder", "link", "real"]


@pytest.mark.parametrize("is_linked", [False, True])
def test_a_pipe_is_written_and_not_replaced(tmp_path, is_linked):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "link").symlink_to(fifo)
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(fifo.read_text()))
    reader.start()
    write_rows(tmp_path / "link" if is_linked else fifo)
    reader.join(timeout=500)
    assert got == ["1\n2\n"]
    assert fifo.is_fifo()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["fifo", "link"]


def test_a_reader_of_a_pipe_that_leaves_is_a_broken_pipe(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    writer = RowWriter(tmp_path / "fifo")
    os.close(reader)
    writer.write("1")
    with pytest.raises(BrokenPipeError):
        writer.close()


def test_a_link_that_leads_to_itself_is_refused(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "link")
    with pytest.raises(ConfigError):
        write_rows(tmp_path / "link" / "file")


def test_items_of_every_format_are_read(tmp_path):
    table, numbers, one = (tmp_path / name for name in ("table.csv", "numbers.jsonl", "object.json"))
    table.write_text("a,b\n1,x\n2,y\n")
    numbers.write_text("1\n\n2\n")
    one.write_text('{"a": 1}')
    assert list(stream_items(str(table))) == [{"a": "1", "b": "x"}, {"a": "2", "b": "y"}]
    assert list(stream_items(str(numbers), "lines")) == ["1", "", "2"]
    for bad, said in ((one, "not a list"), (tmp_path / "missing", "cannot be read")):
        with pytest.raises(ConfigError, match=said):
            list(stream_items(str(bad)))
