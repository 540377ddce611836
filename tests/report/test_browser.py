"""The page in a real browser, where there is one: it draws, and hostile names do nothing."""

import pytest
from chromium import CHROMIUM, Shown, drawn

from evenload.events import Idle, ItemFailed, Note, Planned, Queued, RunStarted, Span
from evenload.report.html import write_report

BAD = "</script><img src=x onerror=\"document.title='hacked'\"><script>document.title='hacked'</script>"

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")


def test_a_report_draws_itself_and_hostile_names_do_nothing(tmp_path):
    events = [
        RunStarted(0.0, BAD, 0.0, 2, {BAD: {"name": BAD}, "b": {}}, {BAD: BAD}),
        Planned(0.0, BAD, BAD, 2.0, 1.5, [[BAD, BAD, "load", 0.0, 0.5, 0], [BAD, BAD, "work", 0.5, 2.0, 2]]),
        *(Queued(t, BAD, int(2 - t), {BAD: 1}) for t in (0.0, 1.0, 2.0)),
        Idle(BAD, 0.0, 0.2, f"loads {BAD}"),
        Span(BAD, BAD, "w", 0, 1, 0.0, 2.0, why=BAD),
        Span(BAD, "b", "w", 1, 1, 0.0, 1.0),
        ItemFailed(2.0, BAD, 0, BAD, BAD, BAD, BAD, BAD),
        Note(2.0, "warning", BAD, BAD),
    ]
    write_report(events, tmp_path / "x.html")
    shown = Shown(drawn(tmp_path / "x.html", tmp_path / "profile"))
    text = " ".join(shown.seen)
    assert "of the best possible time" in text
    assert BAD in text
    assert "Plan against reality" in text
    assert "Items waiting" in text
    assert [tag for tag, _ in shown.tags].count("path") >= 4
    titles = [one for one in shown.seen if "· evenload" in one]
    assert titles
    assert not any(one.strip() == "hacked" for one in shown.seen)
    assert not [attrs for tag, attrs in shown.tags if tag == "img" and attrs.get("src") == "x"]
    assert sum(tag == "canvas" for tag, _ in shown.tags) >= 4
