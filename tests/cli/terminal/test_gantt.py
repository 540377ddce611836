"""The timeline in text."""

from evenload.cli.terminal.text_charts import gantt_lines


def test_a_column_shows_what_fills_it():
    rows = {"a": [(0.0, 5.0, "work"), (5.0, 8.0, "work")], "b": [(0.0, 2.0, "copy"), (2.0, 4.0, "lost")]}
    lines = gantt_lines(rows, 10.0, width=12, ascii_only=True)
    assert lines[0] == "a #####===.."
    assert lines[1] == "b ccxx......"
    assert lines[2] == "  0 s   10 s"


def test_every_line_fits_the_width():
    rows = {f"device {n}": [(0.0, 1.0 + n, "work")] for n in range(5)}
    for width in (30, 80, 200):
        assert {len(line) for line in gantt_lines(rows, 6.0, width)} == {width}


def test_nothing_to_show():
    assert gantt_lines({"a": []}, 0.0, 80) == []
