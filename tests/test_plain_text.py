"""No escape sequence of a stranger gets through the filter, and everything else does."""

import io
import json
import logging
import re
import sys
import unicodedata

import click
import pytest
from examples_count import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from evenload import errors
from evenload._plain_text import escaped_json, number_text, plain, seconds_text, shortened
from evenload._terminal import PlainStream, log_of, own_codes, plain_console, plain_streams, print_line
from evenload.events import json_text

SEQUENCES = [
    "\x1b[31m",
    "\x1b[2J",
    "\x1b[1;1H",
    "\x1b]0;title\x07",
    "\x1b]52;c;cm0gLXJmIC8=\x1b\\",
    "\x1b]8;;http://evil\x07",
    "\x1bc",
    "\x1b(0",
    "\x1bP+q\x1b\\",
    "\x9b8m",
    "\x9d0;title\x9c",
    "\x1b",
    "\x9b",
    "\x08\x08",
    "\r",
    "\x00",
    "\x7f",
    "\u202e",
    "\u2066",
    "\u2028",
    "\udc9b",
]
words = st.lists(
    st.sampled_from(SEQUENCES) | st.text(max_size=4) | st.sampled_from("\n\t[]m;0\\é界😀"), max_size=12
)
strangers = words.map("".join)
DIRECTIONS = {*map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A)), "\u2028", "\u2029"}


def obeyed(text: str) -> set[str]:
    """The characters of ``text`` that a terminal does not just show, by their Unicode categories."""
    return {one for one in text if unicodedata.category(one) in ("Cc", "Cs")} - {"\n", "\t"} | (
        DIRECTIONS & set(text)
    )


@given(strangers)
@example("\x1b[\x1b[31m31m")
@example("\x1b\x1b]0;\x07]52;c;x\x07")
@example("\x1b]0;\x1b[31m\x07")
def test_nothing_that_is_left_is_obeyed(text):
    shown = plain(text)
    assert obeyed(shown) == set()
    assert plain(shown) == shown
    assert len(shown) <= len(text)


@given(st.text())
def test_what_no_terminal_obeys_stays(text):
    harmless = "".join(
        one for one in text if unicodedata.category(one)[0] in "LMNPSZ" and one not in DIRECTIONS
    )
    assert plain(harmless) == harmless


@settings(max_examples=examples(25))
@given(st.recursive(strangers, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(strangers, inner)))
def test_json_stays_json_of_the_same_value(value):
    for text in (json_text(value), json_text(value, indent=2), escaped_json(json.dumps(value))):
        assert obeyed(text) == set()
        # json reads the escapes of two halves that stand together as the letter that they are halves of
        whole = json.loads(json.dumps(value))
        assert json.loads(text) == whole


@pytest.mark.parametrize("piece", ["\x1b", "\x1b[", "\x1b[1;", "\x1b]", "\x1b]x", "\x9d", "\x90a", "\x1b[ "])
def test_the_time_grows_with_the_length_alone(piece):
    """Many characters that begin sequences and never end them: quadratic work would take hours."""
    assert obeyed(plain(piece * (200_000 // len(piece)))) == set()


@given(st.lists(strangers, max_size=5))
def test_a_stream_is_filtered_whatever_the_pieces_are(pieces):
    below = io.StringIO()
    stream = PlainStream(below)
    for piece in pieces:
        assert stream.write(piece) == len(piece)
    stream.writelines(pieces)
    assert obeyed(below.getvalue()) == set()


def test_our_own_codes_go_past_the_filter():
    below = io.StringIO()
    own_codes(PlainStream(below)).write("\x1b[1mtitle\x1b[0m")
    assert own_codes(below) is below
    assert below.getvalue() == "\x1b[1mtitle\x1b[0m"


def test_letters_that_the_encoding_lacks_are_no_error_and_no_way_around_the_filter():
    raw = io.BytesIO()
    stream = PlainStream(io.TextIOWrapper(raw, encoding="ascii", write_through=True))
    click.echo("né\x1b[31m", file=stream)
    assert not hasattr(stream, "buffer")  # click would take it, and write past the filter
    assert raw.getvalue() == b"n?\n"


@given(strangers, strangers)
def test_words_of_ours_between_two_of_strangers_are_kept(before, after):
    assert ": failed (" in plain(f"{before}: failed ({after})")


def test_streams_are_put_back_unless_an_error_is_to_be_printed(monkeypatch):
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with plain_streams():
        print("\x1b[31ma", file=sys.stdout)  # noqa: T201
        print_line("\x1b[31mb")
        with plain_streams():
            print("\x9bc", file=sys.stderr)  # noqa: T201
    assert (sys.stdout, sys.stderr) == (out, err)
    assert (out.getvalue(), err.getvalue()) == ("a\n", "b\n?c\n")
    with pytest.raises(ZeroDivisionError), plain_streams():
        raise ZeroDivisionError
    assert isinstance(sys.stderr, PlainStream)


def test_a_program_without_streams_has_none_afterwards(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    with plain_streams():
        print_line("nobody reads this")
    assert sys.stdout is None


@settings(max_examples=examples(25))
@given(strangers)
def test_log_records_are_plain(text):
    log = log_of("evenload.test")
    heard = io.StringIO()
    handler = logging.StreamHandler(heard)
    log.addHandler(handler)
    try:
        log.warning("%s is not used: %s", text, OSError(text))
    finally:
        log.removeHandler(handler)
    assert obeyed(heard.getvalue()) == set()
    assert heard.getvalue().count("is not used") == 1


@settings(max_examples=examples(25))
@given(strangers)
def test_rich_draws_plain_text_and_its_own_codes_alone(text):
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    below = io.StringIO()
    console = plain_console(below, force_terminal=True, color_system=None, width=60)
    table = Table.grid()
    table.add_row(Text(text, style="link http://evil"), Text(text))
    console.print(Panel(table))
    console.print(text, markup=False)
    assert obeyed(below.getvalue()) == set()


@given(strangers, strangers)
def test_errors_are_plain_text(text, more):
    for error in (
        errors.ConfigError(text, hint=more),
        errors.NoUsableDevice("none", causes={text: more}),
        errors.SpecError(text, [(text, more)]),
        errors.UnknownName("policy", text, [more, "pull"]),
        errors.TaskError(text, device=more, remote_traceback=more),
        errors.GangError(text, rank=0, device=more, remote_traceback=more),
    ):
        assert obeyed(str(error)) == set()


@given(st.text(max_size=3000) | st.lists(words.map("".join), max_size=300).map("\n".join))
@example("x" * 9999)
@example("x y " * 9999)
@example("line\n" * 9999)
def test_a_message_is_as_long_as_a_person_reads(text):
    short = shortened(text)
    assert len(short) <= 6_000
    assert max(map(len, short.split()), default=0) <= 200
    assert max(map(len, short.split("\n"))) <= 1_000
    if len(text) <= 200 or short == text:
        assert short == text
    else:
        assert "…" in short or "more ..." in short


@given(st.floats(1e-6, 1e9), st.sampled_from([3, 4]))
def test_a_time_reads_as_what_it_was_without_powers_of_ten(seconds, n_digits):
    """Oracle: the text itself, read back by its number and its unit."""
    number, unit = seconds_text(seconds, n_digits).split(" ")
    assert re.fullmatch(r"[0-9,]+(\.[0-9]+)?", number)
    size = {"µs": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600}[unit]
    assert float(number.replace(",", "")) * size == pytest.approx(seconds, rel=0.006)


@given(st.floats(1, 1e14), st.integers(2, 4))
def test_a_number_is_near_and_has_no_power_of_ten(value, n_digits):
    shown = number_text(value, n_digits)
    assert re.fullmatch(r"[0-9,]+(\.[0-9]+)?", shown)
    assert float(shown.replace(",", "")) == pytest.approx(value, rel=10.0 ** (1 - n_digits))


def test_times_as_people_write_them():
    times = (0, 12e-6, 0.9999e-3, 0.0345, 0.6, 1.25, 119, 740, 1000, 7300, 12.5 * 3600, 735_000, 4.5e6)
    said = "0 s|12 µs|1,000 µs|34.5 ms|0.6 s|1.25 s|119 s|12.3 min|16.7 min|2.03 h|12.5 h|204 h|1,250 h"
    assert "|".join(map(seconds_text, times)) == said
