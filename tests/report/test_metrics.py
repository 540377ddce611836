"""Metrics as Prometheus scrapes them, and what the Grafana dashboard asks for is there."""

import json
import math
import re
import urllib.request
from pathlib import Path

import pytest

from evenload.events import Queued, RunStarted, Span

pytest.importorskip("uvicorn", reason="needs evenload[watch]")
parser = pytest.importorskip("prometheus_client.parser", reason="needs evenload[watch]")
DASHBOARD = Path(__file__).parents[2] / "examples" / "grafana" / "evenload.json"


@pytest.fixture
def scrape():
    from evenload.dashboard.metrics_server import MetricsServer

    with MetricsServer("127.0.0.1", 0) as server:

        def ask(events):
            for event in events:
                server.sink(event)
            with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=100) as answer:
                text = answer.read().decode()
            return [s for family in parser.text_string_to_metric_families(text) for s in family.samples]

        yield ask


def total(samples, name, **labels):
    return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())


def test_what_a_run_did_can_be_scraped(scrape, sample_run):
    events = list(sample_run(fails=(3, 11), loses=(6,), moves=2))
    samples = scrape(events)
    spans = [event for event in events if isinstance(event, Span)]
    assert total(samples, "evenload_items_total") == sum(span.n_items for span in spans)
    assert total(samples, "evenload_items_total", status="failed", stage="restore") == 2
    assert total(samples, "evenload_failures_total", error="ValueError") == 2
    assert total(samples, "evenload_workers_lost_total") == 1
    assert total(samples, "evenload_moved_items_total") == 14
    assert total(samples, "evenload_items_expected", stage="score") == 24
    assert total(samples, "evenload_item_seconds_count") == sum(span.status == "ok" for span in spans)
    assert 1.0 <= total(samples, "evenload_times_best_possible") < 2.0
    factors = [one.value for one in samples if one.name == "evenload_factor_ratio"]
    assert total(samples, "evenload_useful_ratio") == pytest.approx(math.prod(factors), rel=1e-9)
    assert total(samples, "evenload_lost_seconds", factor="start-up") > 0
    assert total(samples, "evenload_device_memory_total_bytes", device="cuda:0") == 24 * 2**30


def test_a_chunk_is_busy_for_no_longer_than_it_took(scrape):
    """Oracle: the clock. A chunk of 2 s, whose log tells 50 s inside the task, was at work for 2 s."""
    samples = scrape([Span("s", "a", "w", 0, 1, 1.0, 3.0, 50.0)])
    assert total(samples, "evenload_busy_seconds_total") == 2.0
    assert total(samples, "evenload_item_seconds_sum") == 2.0


def test_queues_of_several_stages_add_up(scrape):
    samples = scrape(
        [
            Queued(0.0, "edit", 7, {"a": 1, "b": 2}),
            Queued(0.0, "score", 3, {"b": 1}),
            Queued(1.0, "edit", 5, {"b": 1}),
        ]
    )
    assert total(samples, "evenload_items_waiting", stage="edit") == 5
    assert total(samples, "evenload_items_waiting", stage="score") == 3
    assert total(samples, "evenload_items_running", device="a") == 0
    assert total(samples, "evenload_items_running", device="b") == 2


def test_the_dashboard_asks_for_metrics_that_there_are(scrape, sample_run):
    names = {s.name for s in scrape(sample_run(fails=(3,), loses=(6,), moves=2))}
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    asked = {
        name
        for panel in panels
        for target in panel["targets"]
        for name in re.findall(r"evenload_\w+", target["expr"])
    }
    assert len(asked) > 10
    assert asked <= names


def test_hostile_and_endless_names_stay_labels(scrape, monkeypatch):
    monkeypatch.setattr("evenload.report.metrics.MOST_LABELS", 20)
    bad = 'x"} 1\nevenload_hacked 1\\'
    events = [RunStarted(0.0, bad, 0.0, 1, {}), Span(bad, bad, "w", 0, 1, 0.0, 1.0)]
    events += [Span("map", f"device {i}", "w", i, 1, 0.0, 1.0) for i in range(60)]
    samples = scrape(events)
    assert not [s for s in samples if s.name == "evenload_hacked"]
    assert total(samples, "evenload_items_total", stage=bad) == 1
    assert total(samples, "evenload_items_total", device="other") == 41
