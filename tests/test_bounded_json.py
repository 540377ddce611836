"""JSON of strangers: what is too large is refused unread, what is no JSON is a FormatError."""

import pytest

from evenload import _bounded_json
from evenload._bounded_json import MAX_JSON_BYTES, parse_json, read_json_file
from evenload.errors import FormatError


def test_a_file_over_the_limit_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a terabyte of nothing: reading it would not end
    with pytest.raises(FormatError, match=r"large\.json: 1,099,511,627,776 bytes .* at most 10,000,000"):
        read_json_file(path)


def test_a_file_without_a_size_is_read_to_the_limit():
    with pytest.raises(FormatError, match="10,000,001 bytes or more"):
        read_json_file("/dev/zero")


def test_the_limit_itself_is_read(tmp_path):
    path = tmp_path / "p.json"
    path.write_bytes(b"[]" + b" " * (MAX_JSON_BYTES - 2))
    assert parse_json(read_json_file(path), "p") == []
    path.write_bytes(b"12345")
    assert read_json_file(path, 5) == b"12345"
    with pytest.raises(FormatError, match="at most 4 bytes"):
        read_json_file(path, 4)


def test_a_file_that_is_not_there_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_json_file(tmp_path / "none")


def test_a_text_over_the_limit_is_not_parsed(monkeypatch):
    monkeypatch.setattr(_bounded_json.json, "loads", lambda *_, **__: pytest.fail("it was parsed"))
    with pytest.raises(FormatError, match="p: 3 bytes or more"):
        parse_json("[1]", "p", 2)


@pytest.mark.parametrize("text", ["", "[" * 100_000, b"\xff", "9" * 5000, None, 5, [1]])
def test_what_is_no_json_is_a_format_error(text):
    with pytest.raises(FormatError, match="p: not JSON") as caught:
        parse_json(text, "p")
    assert caught.value.message.isprintable()
