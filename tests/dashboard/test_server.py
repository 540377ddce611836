"""Who may see the page, and what a bad request or a stalled viewer does: nothing."""

import json
import socket
import threading
import time
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from evenload.dashboard import Address
from evenload.dashboard.guard import is_loopback
from evenload.errors import ConfigError
from evenload.events import EventFile, RunStarted, Span, StageStarted


@pytest.fixture
def page(write_run, serve_run, sample_run):
    with serve_run(write_run(sample_run())) as url:
        yield url


def test_only_names_of_this_machine_are_answered(page, get):
    for host in ("evil.example", "evil.example:80", "localhost.evil.example", "", "127.0.0.1.evil"):
        assert get(page, Host=host)[0] == 421, host
    for host in ("localhost", "127.0.0.1:1234", "[::1]:80", "LOCALHOST"):
        assert get(page, Host=host)[0] == 200, host


def test_other_pages_cannot_read_ours(page, get):
    assert get(page + "timeline", Origin="http://evil.example")[0] == 403
    assert get(page + "timeline", **{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"})[0] == 403
    assert get(page, **{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"})[0] == 200


def test_answers_are_not_kept_nor_framed(page, get):
    _, headers, text = get(page)
    assert headers["cache-control"] == "no-store"
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in text
    assert "access-control-allow-origin" not in headers


def test_there_is_nothing_to_change_and_there_are_no_files(page, get):
    for path in ("", "stream", "timeline", "report.html"):
        for method in ("POST", "PUT", "DELETE"):
            assert get(page + path, method=method, body=b"{}")[0] == 405, (method, path)
    for stretch in ("from=x&to=1", "from=nan&to=1", "from=2&to=1", "from=1", "width=wide", "from=0&to=inf"):
        assert get(f"{page}timeline?{stretch}")[0] == 400, stretch
    for path in ("picture/1", "picture/../events.jsonl", "events.jsonl", "picture/-1", "%2e%2e/x"):
        assert get(page + path)[0] == 404, path
    assert get(page + "timeline?width=" + "1" * 10_000)[0] == 414


def test_the_report_can_be_saved(page, get):
    status, headers, text = get(page + "report.html")
    assert (status, headers["content-disposition"]) == (200, 'attachment; filename="report.html"')
    assert "restore sample pictures" in text


def test_a_token_is_asked_for_once_and_leaves_the_address(write_run, serve_run, sample_run, get):
    with serve_run(write_run(sample_run()), Address(port=0, token="")) as url:
        home, _, token = url.partition("?token=")
        assert len(token) >= 24
        assert get(home)[0] == get(home + "stream")[0] == get(home + "?token=wrong")[0] == 401
        status, headers, _ = get(home + "?token=" + token)
        assert (status, headers["location"]) == (303, "/")
        assert "HttpOnly" in headers["set-cookie"]
        assert "SameSite=Strict" in headers["set-cookie"]
        cookie = headers["set-cookie"].partition(";")[0]
        assert get(home, Cookie=cookie)[0] == 200
        assert get(home, Cookie=cookie + "x")[0] == 401
        assert get(home, Cookie="evenload_token=;;;\x01")[0] == 401
        assert get(home, method="POST", Cookie=cookie)[0] == 405


def test_anything_but_loopback_has_a_token():
    assert Address().secured().token is None
    assert Address("0.0.0.0").secured().token
    assert Address("192.168.1.7", token="chosen-by-me").secured().token == "chosen-by-me"
    assert Address("192.168.1.7").secured().url(80).startswith("http://192.168.1.7:80/?token=")
    assert is_loopback("[::1]")
    assert not is_loopback("127.evil.example")


def test_an_address_that_cannot_be_used_is_said(write_run, serve_run, sample_run):
    folder = write_run(sample_run(n_items=2))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with (
            pytest.raises(ConfigError, match="cannot be used"),
            serve_run(folder, Address(port=taken.getsockname()[1])),
        ):
            pass
    with (
        pytest.raises(ConfigError, match="no address"),
        serve_run(folder, Address("no.such.host.invalid", 0)),
    ):
        pass


@contextmanager
def viewer_of(url, **headers):
    where = urlsplit(url)
    asked = {"Host": where.netloc, **headers}
    with socket.create_connection((where.hostname, where.port), timeout=100) as viewer:
        lines = ["GET /stream HTTP/1.1", *(f"{name}: {value}" for name, value in asked.items())]
        viewer.sendall("\r\n".join([*lines, "", ""]).encode())
        yield viewer


def follow(url, state, is_enough, **headers):
    """Keep in ``state`` the newest sections that a viewer is sent, until they are enough or it ends."""
    text = b""
    with viewer_of(url, **headers) as viewer:
        while not is_enough(state) and (piece := viewer.recv(1 << 16)):
            *lines, text = (text + piece).split(b"\n\n")
            for line in lines:
                at = line.find(b"data:")
                if at >= 0:
                    state.update(json.loads(line[at + 5 :].partition(b"\r\n")[0]))
                    state["n_frames"] = state.get("n_frames", 0) + 1


def stall(url, is_over):
    """A viewer that asks and takes nothing."""
    with viewer_of(url) as viewer:
        viewer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        is_over.wait(200)


def write_quickly(path, n_events, per_s):
    """A run of ``per_s`` events a second."""
    began = time.monotonic()
    with EventFile(path, flush_s=0.1) as sink:
        sink(RunStarted(0.0, "quick", time.time(), n_events, {"a": {}, "b": {}}))
        sink(StageStarted(0.0, "map", n_events))
        for i in range(n_events):
            if i % 50 == 0:
                time.sleep(max(0.0, began + i / per_s - time.monotonic()))
            sink(Span("map", "ab"[i % 2], "w" + "ab"[i % 2], i, 1, i / per_s, (i + 1) / per_s))


def test_twenty_viewers_of_a_thousand_events_a_second_and_stalled_ones(tmp_path, serve_run, until):
    (tmp_path / "run").mkdir()
    states = [{} for _ in range(20)]
    is_over = threading.Event()

    def has_all(state):
        return state.get("summary", {}).get("n_done") == 2000

    with serve_run(tmp_path / "run") as url:
        stalled = [threading.Thread(target=stall, args=(url, is_over)) for _ in range(3)]
        viewers = [threading.Thread(target=follow, args=(url, one, has_all)) for one in states]
        for thread in (*stalled, *viewers):
            thread.start()
        until(lambda: all("n_frames" in state for state in states), "each viewer has been sent something")
        write_quickly(tmp_path / "run" / "events.jsonl", 2000, 1000)
        for thread in viewers:
            thread.join(timeout=500)
        is_over.set()
        for thread in stalled:
            thread.join(timeout=500)
    assert all(has_all(state) and state["n_frames"] > 1 for state in states)


def test_a_page_that_is_full_says_so(page, monkeypatch, get):
    monkeypatch.setattr("evenload.dashboard.app.MAX_VIEWERS", 0)
    assert get(page + "stream")[0] == 503


def test_it_ends_with_its_run_and_viewers_see_the_end(write_run, serve_run, sample_run, monkeypatch, until):
    monkeypatch.setattr("evenload.dashboard.server.LAST_S", 3.0)
    folder, state = write_run(sample_run(is_cut=True)), {}
    with serve_run(folder) as url:
        viewer = threading.Thread(
            target=follow, args=(url, state, lambda state: state.get("summary", {}).get("status") == "done")
        )
        viewer.start()
        until(lambda: "n_frames" in state, "the viewer has been sent something")
        write_run([event for event in sample_run() if type(event).__name__ == "RunFinished"])
    viewer.join(timeout=500)
    assert state["summary"]["status"] == "done"


class Job:
    """A target for ``Control``: what an executor does when it is told to drain and to add."""

    def __init__(self):
        self.told, self.ids, self.is_paused = [], ["cuda:0", "cuda:1"], False
        self.devices = self

    def pause(self):
        self.told.append("pause")
        self.is_paused = True

    def resume(self):
        self.told.append("resume")
        self.is_paused = False

    def drain(self, *devices, at_once=False):
        if set(self.ids) <= set(devices):
            raise ConfigError("nobody would work", hint="add another first")
        self.told.append(("drain", *devices))
        self.ids = [one for one in self.ids if one not in devices]

    def add(self, devices):
        self.told.append(("add", devices))
        self.ids.append(devices)
        return (devices,)


@pytest.fixture
def job(write_run, sample_run):
    from evenload.executor.loop.control import Control

    run = sample_run(speeds={"cuda:0": 2.0, "cuda:1": 1.0}, is_cut=True)
    folder, made = write_run(run), Job()
    with Control(folder, made):
        made.folder = folder
        yield made


def test_devices_are_drained_and_added_from_the_page(job, serve_run, look):
    with serve_run(job.folder, has_control=True) as url:
        page = look(url)
        page.get_by_label("Drain cuda:1").click()
        page.get_by_label("Add cuda:1").click()
        page.get_by_label("Drain cuda:1").wait_for()
        page.get_by_role("button", name="Pause").click()
        page.wait_for_selector("text=paused")
        page.get_by_role("button", name="Resume").click()
        page.get_by_role("button", name="Pause").wait_for()
    assert job.told == [("drain", "cuda:1"), ("add", "cuda:1"), "pause", "resume"]


def test_only_who_may_can_tell_a_run_anything(job, serve_run, get):
    ask = json.dumps({"action": "drain", "device": "cuda:1"}).encode()
    plain = {"Content-Type": "application/json"}
    with serve_run(job.folder) as url:
        assert get(url + "control", "POST", ask, **plain)[0] == 403
    with serve_run(job.folder, has_control=True) as url:
        home = url.partition("?token=")[0]
        assert get(home + "control", "POST", ask, **plain)[0] == 401
        cookie = get(url)[1]["set-cookie"].partition(";")[0]
        mine = {**plain, "Cookie": cookie}
        follow(url, {}, lambda state: state.get("control"), Cookie=cookie)  # it knows the devices
        evil = {"Origin": "http://evil.example"}
        assert get(home + "control", "POST", ask, **mine, **evil)[0] == 403
        assert get(home + "control", "POST", ask, Cookie=cookie)[0] == 415
        assert get(home + "control", "GET", None, **mine)[0] == 405
        for bad in (b"", b"{", b"[" * 3000, b"3", b"x" * 100_000):
            assert get(home + "control", "POST", bad, **mine)[0] in (400, 409)
        for action, device in (("kill", "cuda:0"), ("drain", "../x"), ("drain", 3), ("add", "cpu*64")):
            wrong = json.dumps({"action": action, "device": device}).encode()
            assert get(home + "control", "POST", wrong, **mine)[0] == 409
        assert job.told == []
        assert get(home + "control", "POST", ask, **mine)[0] == 200
        last = json.dumps({"action": "drain", "device": "cuda:0"}).encode()
        status, _, text = get(home + "control", "POST", last, **mine)
        assert (status, "nobody would work" in text) == (409, True)
    assert job.told == [("drain", "cuda:1")]
