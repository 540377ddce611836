"""OpenTelemetry spans: the run, its stages, their chunks; sent over OTLP to whoever was named."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from evenload.events import RunFinished, Span
from evenload.report.spans import SpanSink

pytest.importorskip("opentelemetry.sdk", reason="needs evenload[watch]")


@pytest.fixture
def collected(sample_run):
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    def collect(events):
        exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        with SpanSink(provider) as sink:
            for event in events:
                sink(event)
        return exporter.get_finished_spans()

    return collect


def test_chunks_are_in_stages_and_stages_in_the_run(collected, sample_run):
    events = list(sample_run(fails=(3,), loses=(6,), moves=2))
    spans = collected(events)
    (run,) = [span for span in spans if span.parent is None]
    stages = [
        span for span in spans if span.parent is not None and span.parent.span_id == run.context.span_id
    ]
    assert sorted(span.name for span in stages) == ["stage restore", "stage score"]
    chunks = [span for span in spans if "evenload.worker" in span.attributes]
    assert len(chunks) == sum(isinstance(event, Span) for event in events)
    ids = {span.context.span_id for span in stages}
    assert all(chunk.parent.span_id in ids for chunk in chunks)
    assert run.attributes["evenload.status"] == "failures"
    assert [event.name for event in run.events] == ["moved"] * 4
    restore = next(span for span in stages if span.name == "stage restore")
    assert restore.events[0].attributes["exception.type"] == "ValueError"
    assert {chunk.status.status_code.name for chunk in chunks} == {"UNSET", "ERROR"}
    first = next(event for event in events if isinstance(event, Span))
    assert chunks[0].start_time - run.start_time == pytest.approx(first.start_s * 1e9, abs=1e3)


def test_a_run_that_is_cut_off_is_ended_all_the_same(collected, sample_run):
    events = [event for event in sample_run(is_cut=True) if not isinstance(event, RunFinished)]
    assert sum(span.parent is None for span in collected(events)) == 1


def test_spans_arrive_where_the_environment_says(monkeypatch, sample_run):
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    bodies = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            bodies.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        try:
            with SpanSink() as sink:
                for event in sample_run(n_items=4):
                    sink(event)
        finally:
            server.shutdown()
            thread.join(timeout=500)
    names = []
    for path, body in bodies:
        assert path == "/v1/traces"
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            facts = {one.key: one.value.string_value for one in resource.resource.attributes}
            assert facts["service.name"] == "evenload"
            names += [span.name for scope in resource.scope_spans for span in scope.spans]
    assert "run restore sample pictures" in names
    assert names.count("score") >= 4
