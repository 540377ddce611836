"""A run that is being written, its page, and a browser that looks at it."""

import os
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from chromium import CHROMIUM, FLAGS
from sample_runs import SampleRun

from evenload.dashboard import Address
from evenload.events import EventFile

LIMIT_MS = 100_000.0
"""How long a page may take to show something."""


@pytest.fixture
def sample_run():
    return SampleRun


@pytest.fixture
def write_run(tmp_path):
    """``write_run(events)`` writes a run folder, or adds to it."""

    def write(events, name="run"):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        with EventFile(folder / "events.jsonl") as sink:
            for event in events:
                sink(event)
        return folder

    return write


@contextmanager
def served(folder: Path, address: Address | None = None, **options) -> Iterator[str]:
    """The address of the page of ``folder``, served in this process until the block ends."""
    from evenload.dashboard import serve

    told, (reader, writer) = threading.Event(), os.pipe()
    urls, errors = [], []

    def tell(url: str) -> None:
        urls.append(url)
        told.set()

    def run() -> None:
        try:
            with os.fdopen(reader, encoding="utf-8") as ends_with:
                events = folder / "events.jsonl"
                at = address or Address(port=0)
                serve(events, at, tell=tell, every_s=0.1, ends_with=ends_with, **options)
        except BaseException as error:
            errors.append(error)
            told.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert told.wait(100)
    if errors:
        raise errors[0]
    try:
        yield urls[0]
    finally:
        os.close(writer)
        thread.join(100)
    assert not errors, errors


@pytest.fixture
def serve_run(monkeypatch):
    pytest.importorskip("uvicorn", reason="the live page needs evenload[watch]")
    pytest.importorskip("starlette", reason="the live page needs evenload[watch]")
    monkeypatch.setattr("evenload.dashboard.server.LAST_S", 0.3)
    return served


@pytest.fixture(scope="module")
def browser():
    """A browser. While it is open this thread has a running event loop: other tests begin their own."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine (apt-get install chromium)")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        shown = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield shown
        shown.close()


@pytest.fixture
def expect():
    """Playwright's ``expect``, which asks again until it is so, on a machine that does other things besides.

    What a page shows after a key, a click or news of the run comes later: it is never read at once."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    sync_api.expect.set_options(timeout=LIMIT_MS)
    return sync_api.expect


@pytest.fixture
def look(browser):
    """``look(url, **options)`` opens a page; it must load nothing from elsewhere and report no error."""
    contexts, problems = [], []

    def open_page(url, **options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(LIMIT_MS)
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.on("console", lambda said: said.type == "error" and problems.append(said.text))
        home = url.split("/")[2]
        page.on("request", lambda one: one.url.split("/")[2] == home or problems.append(f"asks {one.url}"))
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    expected = (
        "asks data:",
        "asks blob:",
        "Failed to load resource: net::ERR_",
    )  # the last: the server ended
    problems = [one for one in problems if not one.startswith(expected)]
    assert not problems


@pytest.fixture
def get():
    """``get(url, **headers)`` is the status, the headers and the text of an answer."""

    def ask(url, method="GET", body=None, **headers):
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(url, data=body, headers=names, method=method)
        try:
            with urllib.request.build_opener(_Stays).open(request, timeout=100) as answer:
                return answer.status, answer.headers, answer.read().decode("utf-8", "replace")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read().decode("utf-8", "replace")

    return ask


class _Stays(urllib.request.HTTPRedirectHandler):
    """Does not follow redirects."""

    def redirect_request(self, *_):
        return None
