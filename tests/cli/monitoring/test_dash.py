"""``evenload dash`` and ``--dash``: the page comes with the command, and goes with it."""

import json
import os
import re
import subprocess
import sys
import urllib.request
from contextlib import contextmanager

import pytest

from evenload.devices.jobs import announced
from evenload.events import EventFile, RunFinished, RunStarted, Span

pytest.importorskip("uvicorn", reason="the live page needs evenload[watch]")


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run").mkdir()
    with EventFile(tmp_path / "run" / "events.jsonl") as sink:
        sink(RunStarted(0.0, "two items", 0.0, 2, {"a": {}}))
        sink(Span("map", "a", "a", 0, 2, 0.0, 2.0))
        sink(RunFinished(2.0, "done"))
    return tmp_path / "run"


@pytest.fixture
def served(popen):
    """``served(arguments)`` starts the command until the block ends; the address that it prints."""

    @contextmanager
    def start(*arguments):
        line = [sys.executable, "-m", "evenload", "dash", *map(str, arguments), "--port", "0"]
        process = popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        yield process.stdout.readline().strip()
        process.stdin.close()
        process.terminate()
        process.wait(550)

    return start


def read(url):
    with urllib.request.urlopen(url, timeout=550) as answer:
        return answer.read().decode()


def test_the_newest_job_is_served(run, served):
    with announced("x", events=run / "events.jsonl"), served("--live") as url:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", url)
        page = json.loads(read(url + "timeline"))
        assert (page["stages"], page["end_s"]) == (["map"], 2.0)


def test_other_machines_need_a_token(run, served):
    with served(run, "--host", "0.0.0.0") as url:
        assert re.fullmatch(r"http://localhost:\d+/\?token=[\w-]{20,}", url)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--live"], "no job of yours"),
        (["no-such-run"], "there is no run"),
        (["{run}", "--live"], "exclude each other"),
        (["{run}", "--token", "short"], "shorter than 8"),
        (["{run}", "--metrics-port", "x"], "is no address"),
    ],
)
def test_what_cannot_be_served_is_said(run, command, arguments, said):
    code, _, err = command("dash", *(argument.format(run=run) for argument in arguments))
    assert (code, said in err) == (2, True)


HELD = """
import os, time

def nap(line):
    while int(line) >= 10 and not os.path.exists("go"):
        time.sleep(0.02)
    return line
"""


def test_a_map_with_a_page(tmp_path, popen, until):
    (tmp_path / "work.py").write_text(HELD)
    (tmp_path / "items.txt").write_text("".join(f"{i}\n" for i in range(30)))
    command = [sys.executable, "-m", "evenload", "map", "work.py:nap", "items.txt", "--devices", "cpu*2"]
    environ = {**os.environ, "PYTHONUNBUFFERED": "1", "EVENLOAD_DASH": "1"}  # as with --dash
    process = popen(
        [*command, "--metrics-port", "0", "-o", "out.jsonl"],
        cwd=tmp_path,
        env=environ,
        stderr=subprocess.PIPE,
        text=True,
    )
    said, seen, measured = "", {}, ""
    for line in process.stderr:  # up to the end of the page, which writes there, too
        said += line
        if line.startswith("live page: "):
            url = line.split()[-1]

            def has_rows(url=url):
                seen.update(json.loads(read(url + "timeline")))
                return seen.get("rows")

            until(has_rows, "the page has rows")
        if line.startswith("metrics: "):
            measured = read(f"http://127.0.0.1:{line.split()[-1]}/metrics")
        if seen and measured:
            (tmp_path / "go").touch()
    assert said.count("live page: ") == 1, said
    assert "evenload_imbalance_ratio" in measured
    process.stderr.close()
    assert process.wait(550) == 0, said
    assert seen["rows"]
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 30


def test_a_setting_that_cannot_be_followed_is_only_a_warning(monkeypatch, capsys):
    from evenload.cli.monitoring.monitoring import Monitors, recorded

    monkeypatch.setenv("EVENLOAD_DASH", "1")
    monkeypatch.setitem(sys.modules, "starlette", None)
    with recorded("x", Monitors()) as log:
        log.emit(RunFinished(log.now(), "done"))
    assert capsys.readouterr().err == "warning: there is no live page: pip install 'evenload[watch]'\n"


@pytest.fixture
def replay(tmp_path):
    np = pytest.importorskip("numpy")
    pytest.importorskip("numba", reason="routing needs evenload[moe]")
    from evenload.moe.placement.fleet import Fleet
    from evenload.moe.replay.replayer import replay as run

    batches = np.random.default_rng(0).integers(0, 50, (4, 2, 8))
    made = run(batches, Fleet.even(4, 8), history=2, strategies=["EPLB"], name="</script><b>bold")
    (tmp_path / "replay.json").write_text(json.dumps(made.to_json()))
    return tmp_path / "replay.json"


def test_a_replay_of_expert_routing_is_a_page(replay, served):
    with served(replay) as url:
        text = read(url)
    assert ("Replay of" in text, "<b>bold" in text) == (True, False)


@pytest.mark.parametrize("text", ["{", "[]", '{"courses": 3}', '{"courses": []}', "[" * 100_000])
def test_what_is_no_replay_is_said(tmp_path, command, text):
    (tmp_path / "x.json").write_text(text)
    code, _, err = command("dash", tmp_path / "x.json")
    assert code == 2
    assert "x.json: not JSON" in err or "no replay" in err


def test_a_merkle_root_with_a_page(tmp_path, command):
    (tmp_path / "leaves").write_bytes(bytes(32 * 5000))
    line = ("merkle", "root", tmp_path / "leaves")
    _, out, err = command(*line, "--devices", "cpu*2", "--dash")
    assert out == command(*line)[1]
    assert re.search(r"live page: http://127\.0\.0\.1:\d+/", err)
    code, _, err = command(*line, "--dash")
    assert (code, "--devices all" in err) == (2, True)
