"""The stage that asks a server, against a real one on this machine that misbehaves in every usual way."""

import asyncio
import base64
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pipeline.local_server import Answers, LocalServer
from pipeline.written_jobs import write_job

from evenload.errors import ConfigError, EvenloadError, SpecError
from evenload.pipeline import Pipeline
from evenload.pipeline.stage import Item, StageContext
from evenload.pipeline.stages.openai import AnswerCut, OpenAI
from evenload.report.source import open_run
from evenload.report.tally import summarise

KEY = "sk-secret-0123456789"


class Server(LocalServer):
    """Answers chat completions; the first word of a prompt says how it misbehaves before it does."""

    def __init__(self) -> None:
        super().__init__(Handler)
        self.url += "/v1"
        self.seen: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.n_asked: Counter[str] = Counter()
        self.takes: Callable[[], None] = lambda: None


class Handler(Answers):
    server: Server

    def do_POST(self) -> None:
        server, body = self.server, json.loads(self.read())
        content = body["messages"][-1]["content"]
        text = content if isinstance(content, str) else content[-1]["text"]
        server.seen.append({"path": self.path, **body})
        server.keys.append(self.headers["Authorization"])
        server.n_asked[text] += 1
        server.takes()
        self.answer(text, server.n_asked[text])

    def answer(self, text: str, n: int) -> None:
        how, _, rest = text.partition(" ")
        if how == "busy" and n < 3:
            return self.say(429, b'{"error": "slow down"}', **{"Retry-After": "0"})
        if how == "broken" and n < 2:
            return self.say(503, b'{"error": "loading"}')
        if how == "cut" and n < 3:
            self.close_connection = True
            return None
        if how == "wrong":
            return self.say(400, f"no such model; your key is {self.headers['Authorization']}".encode())
        if how == "moved":
            return self.say(307, b"{}", Location="http://127.0.0.1:9/elsewhere")
        said = '{"rating": 7, "why": "sharp"}' if how == "json" else f"answer to {text}"
        found: dict[str, Any] = {"choices": [{"message": {"role": "assistant", "content": said}}]}
        if how == "end":
            found["choices"][0]["finish_reason"] = rest
            found["usage"] = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
        return self.say(200, json.dumps(found).encode())


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("TEST_KEY", KEY)
    monkeypatch.setenv("no_proxy", "*")
    with Server().serving() as running:
        yield running


def ask(server: Server, text: str, **more: Any) -> Any:
    device = SimpleNamespace(id="cpu:0", torch="cpu")
    options = {"url": server.url, "model": "m", "prompt": "{text}", "api_key_env": "TEST_KEY"}
    return called(OpenAI(StageContext("ask", device, Path()), **(options | more)), {"text": text})


def called(stage: OpenAI, values: dict[str, Any]) -> Any:
    """What one call gives; nothing pauses before it tries again."""

    async def no_pause(_: float) -> None:
        for server in stage._servers._servers:
            server.pace.hold_s = 0.0

    stage._servers._sleep = no_pause  # type: ignore[assignment]
    try:
        return asyncio.run(stage(values, Item(0, "a", seed=2**33 + 5)))
    finally:
        stage.close()


@pytest.mark.parametrize(("how", "n"), [("plain", 1), ("busy", 3), ("broken", 2), ("cut", 3)])
def test_it_asks_until_there_is_an_answer(server: Server, how: str, n: int) -> None:
    answer = ask(server, f"{how} one", system="Be brief.", body={"temperature": 0})
    assert answer == {"answer": f"answer to {how} one"}
    assert server.n_asked[f"{how} one"] == n
    first = server.seen[0]
    assert first["path"] == "/v1/chat/completions"
    assert (first["model"], first["seed"], first["temperature"]) == ("m", 5, 0)
    assert first["messages"][0] == {"role": "system", "content": "Be brief."}
    assert set(server.keys) == {f"Bearer {KEY}"}


def test_an_answer_may_be_an_object_of_outputs(server: Server) -> None:
    assert ask(server, "json", reads_json=True) == {"rating": 7, "why": "sharp"}
    with pytest.raises(EvenloadError, match="not JSON"):
        ask(server, "plain", reads_json=True)


@pytest.mark.parametrize(("how", "match"), [("wrong", "answered 400"), ("moved", "answered 307")])
def test_what_is_no_use_to_try_again_is_told_at_once_and_without_the_key(
    server: Server, how: str, match: str
) -> None:
    with pytest.raises(EvenloadError, match=match) as caught:
        ask(server, how)
    assert server.n_asked[how] == 1
    assert KEY not in f"{caught.value} {caught.value.hint}"


def test_a_server_that_stays_away_is_told_after_the_last_attempt(server: Server) -> None:
    with pytest.raises(EvenloadError, match="2 times"):
        ask(server, "cut", retries=1)
    assert server.n_asked["cut"] == 2


def test_pictures_are_sent_before_the_prompt(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    stage = OpenAI(
        StageContext("ask", SimpleNamespace(id="cpu:0", torch="cpu"), Path()),
        url=server.url + "/", model="m", prompt="what is it?", images=["path"],
    )  # fmt: skip
    called(stage, {"path": str(tmp_path / "a.png")})
    picture, text = server.seen[0]["messages"][0]["content"]
    assert text == {"type": "text", "text": "what is it?"}
    assert picture["image_url"]["url"].startswith("data:image/png;base64,")
    assert base64.b64decode(picture["image_url"]["url"].partition(",")[2]) == b"\x89PNG"


@pytest.mark.parametrize("how", ["length", "content_filter"])
def test_an_answer_that_was_cut_fails_unless_it_is_allowed(server: Server, how: str) -> None:
    with pytest.raises(AnswerCut, match=how):
        ask(server, f"end {how}")
    assert server.n_asked[f"end {how}"] == 1
    also = ["finish_reason", "tokens_in", "tokens_out", "latency_s"]
    found = ask(server, f"end {how}", allow_cut=True, also=also)
    assert found.pop("latency_s") > 0
    assert found == {"answer": f"answer to end {how}", "finish_reason": how, "tokens_in": 3, "tokens_out": 4}
    found = ask(server, "plain", also={"finish_reason": "why"})
    assert found == {"answer": "answer to plain", "why": None}


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host/v1", "http://", "http://me:pw@host/v1"])
def test_an_address_that_is_none_or_holds_a_password_is_refused(url: str) -> None:
    device = SimpleNamespace(id="cpu:0", torch="cpu")
    with pytest.raises(ConfigError, match="url") as caught:
        OpenAI(StageContext("ask", device, Path()), url=url, model="m", prompt="p")
    assert "pw" not in str(caught.value)


def asking_job(server: Server, folder: Path, texts: list[str]) -> Path:
    stage = f"""\
  - name: ask
    kind: openai
    params: {{url: {server.url}, model: m, prompt: "{{text}}", api_key_env: TEST_KEY, output: said}}
    in_flight: 4
    timeout_s: 600
"""
    rows = [{"id": f"r{n}", "text": text} for n, text in enumerate(texts)]
    return write_job(folder, "", stage, rows, job="out: run", more="")


def test_what_the_server_takes_is_waiting_and_neither_work_nor_bound(server: Server, tmp_path: Path) -> None:
    """The oracle is the server's clock: two batches of four, each answered after a while, at once."""
    slept: list[float] = []

    def take_a_while() -> None:
        began = time.monotonic()
        time.sleep(0.4)
        slept.append(time.monotonic() - began)

    server.takes = take_a_while
    Pipeline.from_yaml(asking_job(server, tmp_path, [f"plain {n}" for n in range(8)])).run()
    summary = summarise(open_run(tmp_path / "run"))
    (worker,) = summary.factors.workers  # type: ignore[union-attr]
    least_s = sum(slept) / 4  # of each batch, one after the other
    assert len(slept) == 8
    assert 0.8 * least_s <= worker.lost_s["waiting"] <= least_s + 0.8
    assert worker.in_task_s <= summary.wall_s - 0.8 * least_s
    assert summary.bound_s < 0.5 * least_s < summary.bound_up_to_s


def test_a_whole_run_leaves_the_key_nowhere(server: Server, tmp_path: Path) -> None:
    job = asking_job(server, tmp_path, ["plain a", "busy b", "wrong c", "broken d"])
    result = Pipeline.from_yaml(job).run(backend="inline")
    assert [one.outputs.get("said") for one in result] == [
        "answer to plain a", "answer to busy b", None, "answer to broken d"
    ]  # fmt: skip
    assert set(server.keys) == {f"Bearer {KEY}"}
    for file in (tmp_path / "run").rglob("*"):
        assert not file.is_file() or KEY.encode() not in file.read_bytes(), file
    job.write_text(job.read_text().replace("{text}", "{txt}"))
    with pytest.raises(SpecError, match="'txt' is no column"):
        Pipeline.from_yaml(job)
