"""Two runs on one page."""

import pytest

from evenload.events import EventFile
from evenload.report.html import write_comparison


@pytest.fixture
def runs(tmp_path, sample_run):
    folders = []
    for name, options in (("a", {}), ("b", {"fails": (3,), "names": "</script><b>{:03d}".format})):
        folders.append(tmp_path / name)
        folders[-1].mkdir()
        with EventFile(folders[-1] / "events.jsonl") as sink:
            for event in sample_run(n_items=12, **options):
                sink(event)
    return folders


def test_both_runs_are_on_the_page(runs, tmp_path):
    summaries = write_comparison(runs, tmp_path / "x.html")
    assert [one.n_failed for one in summaries] == [0, 1]
    text = (tmp_path / "x.html").read_text(encoding="utf-8")
    assert len(text) < 1_500_000
    assert "</script><b>" not in text
    assert f"{summaries[0].factors.share:.0%} of it useful work" in text


def test_a_damaged_one_is_shown_as_far_as_it_goes(runs, tmp_path):
    path = runs[1] / "events.jsonl"
    path.write_bytes(path.read_bytes()[:-200] + b'\n{"event":"FromTheFuture"}\n')
    write_comparison(runs, tmp_path / "x.html")
    text = (tmp_path / "x.html").read_text(encoding="utf-8")
    assert "damaged or half-written" in text
    assert "FromTheFuture" in text
