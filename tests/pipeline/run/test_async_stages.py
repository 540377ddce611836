"""Stages whose calls are coroutines. The oracles: what the stages saw, and what a server was asked."""

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pipeline.local_server import Answers, LocalServer
from pipeline.written_jobs import write_job

from evenload.pipeline import Pipeline, PipelineResult
from evenload.pipeline.dispatch import hang_watch

STAGES = """
import asyncio, os, time
from pathlib import Path

HERE = Path(__file__).parent

class Ask:
    n_now = most = 0

    async def __call__(self, inputs, item):
        self.n_now += 1
        self.most = max(self.most, self.n_now)
        how = inputs.get("how", "")
        if how == "last":  # until all others have gone through the whole job
            while len(list(HERE.glob("seen-*"))) < inputs["n"] - 1:
                await asyncio.sleep(0.01)
        elif how == "never":
            await asyncio.Event().wait()
        elif how == "stubborn":
            for _ in range(3):
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    pass
        elif how == "blocks":
            (HERE / f"blocked-{os.getpid()}").write_text("")
            while True:
                time.sleep(0.01)
        elif how == "computes":
            time.sleep(1.2)
        elif how == "raises":
            raise KeyError("no such thing")
        elif how == "exits":
            raise SystemExit(3)
        elif how == "dies":
            os._exit(3)
        else:
            await asyncio.sleep(0.001 * (item.index % 7))
        self.n_now -= 1
        return {"text": f"{item.id} {item.seed}", "most": self.most, "pid": os.getpid()}

    async def close(self):
        (HERE / "closed").write_text(str(self.n_now))

class Plain:
    def __call__(self, inputs, item):
        return {"text": item.id}

class See:
    def __call__(self, inputs, item):
        (HERE / f"seen-{item.id}").write_text("")
        return {"seen": inputs["text"].upper()}

async def spell(inputs, item, *, end):
    await asyncio.sleep(0)
    return item.id + end
"""


def run_job(
    folder: Path,
    stages: str,
    rows: list[dict[str, Any]],
    more: str = "",
    devices: str = "cpu*1",
    **options: Any,
) -> PipelineResult:
    items = [{"id": f"i{at}", "n": len(rows), **row} for at, row in enumerate(rows)]
    job = write_job(folder, STAGES, stages + more, items, job="out: run, seed: 3", devices=devices)
    return Pipeline.from_yaml(job).run(**options)


def warnings_of(folder: Path) -> str:
    lines = (folder / "run/events.jsonl").read_text().splitlines()
    return "\n".join(line for line in lines if '"warning"' in line)


ASK = "  - {name: ask, target: 'stages.py:Ask', in_flight: 5}\n"
SEE = "  - {name: see, target: 'stages.py:See'}\n"


def test_one_slow_item_holds_up_no_other_and_no_more_are_in_flight_than_allowed(tmp_path: Path) -> None:
    rows = [{}, {"how": "last"}, *[{} for _ in range(30)]]
    result = run_job(tmp_path, ASK + SEE, rows)
    assert [item.status for item in result] == ["done"] * 32
    assert [item.outputs["seen"].split()[0] for item in result] == [f"I{at}" for at in range(32)]
    assert max(item.outputs["most"] for item in result) == 5
    assert (tmp_path / "closed").read_text() == "0"


def test_an_item_that_fails_or_takes_too_long_costs_no_other_and_no_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hang_watch, "WAITING_S", 1.0)
    hows = ["", "never", "raises", "", "exits", "stubborn", "", ""]
    more = "errors: {timeout_s: 1}\n"
    result = run_job(tmp_path, ASK, [{"how": how} for how in hows], more)
    errors = [item.error.type if item.error else "" for item in result]
    assert errors == ["", "TaskTimeout", "KeyError", "", "SystemExit", "TaskTimeout", "", ""]
    assert len({item.outputs["pid"] for item in result if item.status == "done"}) == 1


def test_an_item_that_never_awaits_is_named_and_the_others_are_done(tmp_path: Path) -> None:
    rows = [{"how": "blocks"} if at == 3 else {} for at in range(12)]
    result = run_job(tmp_path, ASK, rows, "errors: {timeout_s: 1}\n")
    assert [item.status for item in result] == ["failed" if at == 3 else "done" for at in range(12)]
    assert "never awaits" in str([item.error for item in result][3])
    assert len(list(tmp_path.glob("blocked-*"))) == 1
    assert "could not be ended" in warnings_of(tmp_path)


def test_a_worker_that_dies_takes_only_the_item_that_killed_it(tmp_path: Path) -> None:
    rows = [{"how": "dies"} if at == 3 else {} for at in range(12)]
    result = run_job(tmp_path, ASK, rows)
    assert [item.status for item in result] == ["failed" if at == 3 else "done" for at in range(12)]


def test_an_item_that_computes_where_it_should_wait_is_told(tmp_path: Path) -> None:
    run_job(tmp_path, ASK, [{"how": "computes"} if at == 3 else {} for at in range(6)], backend="inline")
    assert "held the event loop" in warnings_of(tmp_path)


def test_a_function_may_be_async_and_a_stage_that_is_not_is_told(tmp_path: Path) -> None:
    spell = "  - {name: s, kind: function, params: {function: 'stages.py:spell', output: text}, "
    result = run_job(tmp_path, spell + "call: {end: '!'}, in_flight: 3}\n" + SEE, [{}] * 9, backend="inline")
    assert [item.outputs["seen"] for item in result] == [f"I{at}!" for at in range(9)]
    plain = "  - {name: s, target: 'stages.py:Plain', in_flight: 3}\n"
    result = run_job(tmp_path, plain, [{}] * 9, backend="inline")
    assert [item.outputs["text"] for item in result] == [f"i{at}" for at in range(9)]
    assert "not async" in warnings_of(tmp_path)


class Server(LocalServer):
    """Answers ``n_free`` requests at once, and holds the others until ``opened``."""

    def __init__(self, n_free: int) -> None:
        super().__init__(Handler)
        self.n_free, self.n_asked, self.lock = n_free, Counter[str](), threading.Lock()
        self.opened = threading.Event()
        self.asked_s: list[float] = []


class Handler(Answers):
    def do_POST(self) -> None:
        text = json.loads(self.read())["messages"][-1]["content"]
        with self.server.lock:
            is_held = sum(self.server.n_asked.values()) >= self.server.n_free
            self.server.n_asked[text] += 1
            self.server.asked_s.append(time.monotonic())
        if is_held:
            self.server.opened.wait(500)
        self.say(200, json.dumps({"choices": [{"message": {"content": f"<answer {text}>"}}]}).encode())


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    with Server(n_free=40).serving() as running:
        yield running
        running.opened.set()


@pytest.mark.timeout(600)
def test_an_item_whose_answer_never_comes_is_ended_and_asked_for_once(tmp_path: Path, server: Server) -> None:
    """Also on a connection that was open before, where a request that fails is sent again."""
    server.n_free = 9
    params = f"{{url: '{server.url}/v1', model: m, prompt: '{{q}}', retries: 0}}"
    stages = f"  - {{name: ask, kind: openai, params: {params}, in_flight: 3}}\n"
    rows = [{"q": str(at)} for at in range(15)]
    result = run_job(tmp_path, stages, rows, "errors: {timeout_s: 1}\n", backend="inline")
    assert [item.status for item in result].count("done") == 9
    assert {item.error.type for item in result if item.error} == {"TaskTimeout"}
    assert set(server.n_asked.values()) == {1}


def test_after_a_kill_no_answer_that_had_come_is_asked_for_again(
    tmp_path: Path,
    server: Server,
    popen: Callable[..., subprocess.Popen],
    until: Callable[[Callable[[], object], str], None],
    evenload: list[str],
) -> None:
    """The oracle is the server's count. The batch of an old job file would keep none of these answers."""
    stage = (
        f"  - name: ask\n    kind: openai\n    params: {{url: '{server.url}/v1', model: m, prompt: '{{q}}', "
    )
    stage += "concurrency: 6}\n    batch: 64\n    batch_changes_bits: allow\n"
    write_job(tmp_path, "", stage, [{"id": f"i{at}", "q": str(at)} for at in range(64)])
    command = ["run", "job.yaml", "-o", "run", "-q"]

    def n_kept() -> int:
        kept = b"".join(path.read_bytes() for path in (tmp_path / "run/journal").rglob("*") if path.is_file())
        return sum(f"<answer {at}>".encode() in kept for at in range(64))

    first = popen([sys.executable, "-m", "evenload", *command], cwd=tmp_path)
    until(lambda: sum(server.n_asked.values()) == 46 or first.poll() is not None, "six are under way")
    until(lambda: n_kept() == 40 or first.poll() is not None, "the answers that came are kept")
    first.kill()
    first.wait(500)
    asked = dict(server.n_asked)
    server.opened.set()
    assert popen([*evenload, *command], cwd=tmp_path).wait(500) == 0
    again = {text for text, n in server.n_asked.items() if n > 1}
    assert len(asked) == 46
    assert len(again) == 6
    assert set(server.n_asked) == {str(at) for at in range(64)}
    assert "under way at once (params.concurrency)" in (tmp_path / "run/events.jsonl").read_text()
