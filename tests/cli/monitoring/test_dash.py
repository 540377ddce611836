"""``evenload dash`` and ``--dash``: the page comes with the command, and goes with it."""

import json
import os
import re
import subprocess
import sys
import urllib.request

import pytest

from evenload.cli import main
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
    """Starts the command; returns the process and the address that it prints."""

    def start(*arguments):
        command = [sys.executable, "-m", "evenload", "dash", *map(str, arguments)]
        process = popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return process, process.stdout.readline().strip()

    return start


def end(process):
    process.stdin.close()
    process.terminate()
    process.wait(550)
    process.stdout.close()


def read(url):
    with urllib.request.urlopen(url, timeout=550) as answer:
        return answer.read().decode()


def test_a_run_is_served_with_its_metrics(run, served):
    process, url = served(run, "--port", 0)
    try:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", url)
        assert json.loads(read(url + "timeline"))["stages"] == ["map"]
    finally:
        end(process)


def test_other_machines_need_a_token(run, served):
    process, url = served(run, "--port", 0, "--host", "0.0.0.0")
    try:
        assert re.fullmatch(r"http://localhost:\d+/\?token=[\w-]{20,}", url)
    finally:
        end(process)


def test_the_newest_job_is_found(run, served):
    with announced("x", events=run / "events.jsonl"):
        process, url = served("--live", "--port", 0)
        try:
            assert json.loads(read(url + "timeline"))["end_s"] == 2.0
        finally:
            end(process)


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
def test_what_cannot_be_served_is_said(run, capsys, arguments, said):
    with pytest.raises(SystemExit) as ended:
        main(["dash", *(argument.format(run=run) for argument in arguments)])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


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
    process, url = served(replay, "--port", 0)
    try:
        text = read(url)
        assert "Replay of" in text
        assert "<b>bold" not in text
    finally:
        end(process)


@pytest.mark.parametrize("text", ["{", "[]", '{"courses": 3}', '{"courses": []}', "[" * 100_000])
def test_what_is_no_replay_is_said(tmp_path, capsys, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(SystemExit) as ended:
        main(["dash", str(tmp_path / "x.json")])
    assert ended.value.code == 2
    assert "x.json: not JSON" in (err := capsys.readouterr().err) or "no replay" in err


def test_a_merkle_root_with_a_page(tmp_path):
    (tmp_path / "leaves").write_bytes(bytes(32 * 5000))
    command = [sys.executable, "-m", "evenload", "merkle", "root", "leaves"]
    plain = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=550)
    more = ["--devices", "cpu*2", "--dash"]
    shown = subprocess.run(
        [*command, *more], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=550
    )
    assert shown.stdout == plain.stdout
    assert re.search(r"live page: http://127\.0\.0\.1:\d+/", shown.stderr)
    refused = subprocess.run(
        [*command, "--dash"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=550
    )
    assert refused.returncode == 2
    assert "--devices all" in refused.stderr
