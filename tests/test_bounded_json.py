"""JSON of strangers: what is too large is refused unparsed, what is no JSON is a FormatError."""

import pytest

from evenload import _bounded_json
from evenload._bounded_json import parse_json
from evenload.errors import FormatError


def test_a_text_over_the_limit_is_not_parsed(monkeypatch):
    monkeypatch.setattr(_bounded_json.json, "loads", lambda *_, **__: pytest.fail("it was parsed"))
    with pytest.raises(FormatError, match="p: 3 bytes or more"):
        parse_json("[1]", "p", 2)


@pytest.mark.parametrize("text", ["", "[" * 100_000, b"\xff", "9" * 5000, None, 5, [1]])
def test_what_is_no_json_is_a_format_error(text):
    with pytest.raises(FormatError, match="p: not JSON") as caught:
        parse_json(text, "p")
    assert caught.value.message.isprintable()
