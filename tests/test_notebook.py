"""What notebooks show: every value has a table, and nothing in it is markup of a stranger's."""

from html.parser import HTMLParser

from evenload.devices import Device, DevicePool
from evenload.executor.decide.summary import DeviceShare, Summary
from evenload.notebook import MAX_BARS, bars, gantt, page, share, table

BAD = "<script>alert(1)</script>\x1b[31m"
ALLOWED = {"div", "b", "table", "thead", "tbody", "tr", "th", "td", "span", "svg", "text", "rect"}


class Tags(HTMLParser):
    def __init__(self, html):
        super().__init__()
        self.open, self.seen, self.text = [], set(), []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        self.open.append(tag)
        assert not any(name.startswith("on") for name, _ in attrs)

    def handle_startendtag(self, tag, attrs):
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        self.text.append(text)


def read(html):
    tags = Tags(html)
    assert tags.open == []
    assert tags.seen <= ALLOWED
    return " ".join(tags.text)


def test_tables_and_timelines_escape_what_they_show():
    text = read(
        page(BAD, table([BAD, "x"], [[BAD, share(0.5)], [None, 1.23456]]), gantt({BAD: [(0, 1, 7)]}, 2.0))
    )
    assert "<script>" in text
    assert "\x1b" not in text
    assert "50%" in text
    assert "1.235" in text


def test_an_endless_timeline_stays_small():
    assert len(gantt({"a": [(i, i + 1, i) for i in range(100_000)], "b": [(0, 1, 0)]}, 1e5)) < 500_000
    assert gantt({}, 1.0) == gantt({"a": []}, 0.0) == ""


def test_bars_escape_their_names_and_stay_few():
    drawn = bars({BAD: 0.5, "b": 2.0}, 1.0)
    assert "<script>" in read(drawn)
    assert "2.00" in drawn
    assert bars({str(i): 1.0 for i in range(10_000)}, 1.0).count("<text") == 2 * MAX_BARS
    assert bars({}, 1.0) == bars({"a": 0.0}, 0.0) == ""


def test_a_routing_shows_the_loads_of_its_least_even_layer():
    from evenload.balance.flow import route

    found = read(route([[0, 1, 2, 3], [0, 1, 2, 3]], [[1, 1, 1, 1], [3, 1, 1, 1]], n_gpus=2)._repr_html_())
    assert "layer 1 of 2" in found
    assert "1.333x the mean" in found
    assert "0.67" in found
    uneven = read(route([0, 1], [2, 1], n_gpus=2, speeds=[2, 1])._repr_html_())
    assert "1.000x" in uneven
    assert "GPU 1" in uneven
    assert "GPU 0" in read(route([0, 1, 0, 1], [0, 0], n_gpus=2, dead=[1])._repr_html_())


def test_values_show_themselves():
    summary = Summary(
        3, 3, 0, 1.0, 0.0, 3.0, 0.9, 1.1, "work", 1.0, {"cpu:0": DeviceShare(3, 3, 0.9, 0.9, 3.3)}
    )
    assert "1.10x the least possible" in read(summary._repr_html_())
    pool = DevicePool([Device("cpu:0", "cpu", "cpu", BAD, 2**34, 8, threads=8)])
    assert "16" in read(pool._repr_html_())


def test_a_partitioned_result_and_a_plan():
    import evenload
    from evenload.pipeline.plan import CandidateResult, Plan, TimelineSlice

    result = evenload.run_partitioned(sum, list(range(100)), "equal", devices="cpu*2")
    assert "equal: 2 slices" in read(result._repr_html_())
    plan = Plan("single", (), 2.0, 1.0, BAD, (CandidateResult("swap", "x", None, "no"),))
    slices = (TimelineSlice("cuda:0", "edit", "work", 0.0, 2.0, 3),)
    assert "2.00x" in read(plan._repr_html_())
    assert "cuda:0" in read(
        type(plan)(**{**{f: getattr(plan, f) for f in plan.__slots__}, "slices": slices})._repr_html_()
    )
