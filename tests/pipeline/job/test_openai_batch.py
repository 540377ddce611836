"""OpenAI's batch files, in and out, through a real server on this machine.

The oracle is the server: what it was sent, and what it said to whom.
"""

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pipeline.local_server import Answers, LocalServer

from evenload.errors import SpecError
from evenload.pipeline import Pipeline, PipelineResult
from evenload.pipeline.job import openai_batch

URL = "/v1/chat/completions"


class Server(LocalServer):
    """Answers as the field ``how`` of a request says, and remembers what it was sent and what it said."""

    def __init__(self) -> None:
        super().__init__(Handler)
        self.url += "/v1"
        self.sent: list[tuple[str, Any]] = []
        self.said: dict[str, Any] = {}


class Handler(Answers):
    server: Server

    def do_POST(self) -> None:
        asked = json.loads(self.read())
        text, how = asked["messages"][0]["content"], asked.get("how")
        message: dict[str, Any] = {"role": "assistant", "content": f"to {text}"}
        if how == "tool":
            message = {"role": "assistant", "content": None, "tool_calls": [{"id": "t", "type": "function"}]}
        choice = {"index": 0, "message": message, "finish_reason": "length" if how == "cut" else "stop"}
        said: Any = {"id": f"chatcmpl-{text}", "choices": [choice, {"n": "ü\ud800"}], "x": [1.5, None]}
        if how == "long":
            message["content"] = "字" * 300_000
        if how == "refused":
            said = {"error": {"message": "no such model"}}
        self.server.sent.append((self.path, asked))
        self.server.said[text] = said
        headers = {"X-Request-Id": "req-7"} if how == "named" else {}
        self.say(400 if how == "refused" else 200, json.dumps(said).encode(), **headers)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    with Server().serving() as running:
        yield running


def line(name: Any, body: Any = None, **more: Any) -> str:
    body = {"model": "m", "messages": [{"role": "user", "content": name}]} if body is None else body
    return json.dumps({"custom_id": name, "method": "POST", "url": URL, "body": body, **more})


def write(folder: Path, lines: list[str], url: str = "http://127.0.0.1:9/v1", more: str = "") -> Path:
    (folder / "requests.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "job.yaml").write_text(
        "version: 1\njob: {name: batch, inputs: {openai_batch: requests.jsonl}, out: run}\ndevices: cpu*1\n"
        f"stages:\n  - {{name: ask, kind: openai, params: {{url: '{url}', request: body, retries: 0}}, "
        f"in_flight: 4}}\n{more}report: {{html: false, trace: false}}\n"
    )
    return folder / "job.yaml"


def run(job: Path) -> tuple[PipelineResult, list[dict[str, Any]]]:
    result = Pipeline.from_yaml(job).run(backend="inline")
    told = (job.parent / "run/openai_batch.jsonl").read_text().splitlines()
    return result, [json.loads(one, parse_constant=lambda name: pytest.fail(name)) for one in told]


ODD = [
    'aü字😀\n"{}\\\ud800\u2028',
    0.1,
    -1e-300,
    1e300,
    -0.0,
    0,
    -1,
    2**63,
    10**40,
    None,
    True,
    [],
    {},
    [[{}]],
]


def test_each_request_goes_as_it_is_and_each_answer_comes_back_whole(server: Server, tmp_path: Path) -> None:
    names = [f"{at}/ä {at * 0.1}" for at in range(40)]
    bodies = [
        {"messages": [{"role": "user", "content": name}, odd], "odd": {"k": [odd, {"k": ODD}]}, "seed": at}
        for at, (name, odd) in enumerate(zip(names, itertools.cycle(ODD), strict=False))
    ]
    lines = [line(name, body) for name, body in zip(names, bodies, strict=True)]
    lines.insert(7, "")
    _, told = run(write(tmp_path, lines, server.url))
    assert sorted(json.dumps(one) for _, one in server.sent) == sorted(map(json.dumps, bodies))
    assert {path for path, _ in server.sent} == {URL}
    assert [one["custom_id"] for one in told] == names
    assert len({one["id"] for one in told}) == 40
    for one in told:
        assert set(one) == {"id", "custom_id", "response", "error"}
        assert one["error"] is None
        said = server.said[one["custom_id"]]
        assert one["response"] == {"status_code": 200, "request_id": said["id"], "body": said}


def test_what_failed_has_an_error_and_what_was_answered_is_kept(server: Server, tmp_path: Path) -> None:
    (tmp_path / "later.py").write_text(
        "class Later:\n    def __call__(self, inputs, item):\n"
        "        return {'n': len(inputs['answer'])} if inputs['answer'] else 1 / 0\n"
    )
    hows = ["plain", "refused", "cut", "tool", "long", "named"]
    lines = [line(how, {"how": how, "messages": [{"role": "user", "content": how}]}) for how in hows]
    job = write(tmp_path, lines, server.url, more="  - {name: later, target: 'later.py:Later'}\n")
    result, told = run(job)
    assert [item.status for item in result] == ["done", "failed", "failed", "failed", "done", "done"]
    errors = {one["custom_id"]: one["error"] for one in told if one["error"]}
    assert set(errors) == {"refused", "cut"}
    assert errors["refused"]["code"] == "EvenloadError"
    assert "answered 400" in errors["refused"]["message"]
    assert errors["cut"]["code"] == "AnswerCut"
    answers = {one["custom_id"]: one["response"] for one in told if one["response"]}
    assert set(answers) == set(hows) - {"refused", "cut"}
    assert all(answers[how]["body"] == server.said[how] for how in answers)
    assert answers["named"]["request_id"] == "req-7"
    n_sent = len(server.sent)
    assert run(job)[1] == told  # resumed: nothing that was answered is asked for again
    assert len(server.sent) <= n_sent + 2


def test_the_job_may_name_another_model_than_the_file(server: Server, tmp_path: Path) -> None:
    job = write(tmp_path, [line("a")], server.url)
    job.write_text(job.read_text().replace("request: body", "request: body, model: here, body: {top_k: 3}"))
    run(job)
    ((_, sent),) = server.sent
    assert sent == {"model": "here", "messages": [{"role": "user", "content": "a"}], "top_k": 3}


def test_a_condition_may_name_what_is_known_of_an_answer(server: Server, tmp_path: Path) -> None:
    (tmp_path / "later.py").write_text(
        "class Later:\n    def __call__(self, inputs, item):\n        return {}\n"
    )
    more = "  - {name: later, target: 'later.py:Later', when: why == \"stop\" and response != null}\n"
    job = write(tmp_path, [line("a")], server.url, more)
    job.write_text(job.read_text().replace("request: body", "request: body, also: {finish_reason: why}"))
    assert [item.status for item in run(job)[0]] == ["done"]


HOSTILE = {
    "{": "not JSON",
    "[" * 100_000: "not JSON",
    "7": "not a JSON object",
    line(None): "custom_id None",
    line(7): "custom_id 7",
    line("  "): "custom_id '  '",
    line("x" * 600): "custom_id 'xxx",
    line("a"): "custom_id 'a' of line 1",
    line("b", body=[1]): r"body \[1\]",
    line("b", body={"messages": []}): "list of messages",
    line("b", body={"messages": "hello"}): "list of messages",
    line("b", body={"messages": [1], "stream": True}): "stream",
    line("b", body={"messages": [1], "t": 1}).replace('"t": 1', '"t": 1e999'): "beyond a float",
    line("b", body={"messages": [1], "t": 1}).replace('"t": 1', '"t": NaN'): "beyond a float",
    line("b", method="GET"): "method 'GET'; only POST",
    line("b", url="/v1/embeddings"): "url '/v1/embeddings'; only /v1/chat/completions",
    line("b", url="http://other.example/v1/chat/completions"): "only /v1/chat/completions",
    line("b", url=[URL]): "only /v1/chat/completions",
}


def test_lines_that_are_no_requests_are_all_refused_by_their_number_before_the_run(tmp_path: Path) -> None:
    job = write(tmp_path, [line("a"), *HOSTILE])
    with pytest.raises(SpecError) as caught:
        Pipeline.from_yaml(job)
    told = str(caught.value).splitlines()
    for number, words in enumerate(HOSTILE.values(), start=2):
        (found,) = [one for one in told if re.search(rf"requests.jsonl line {number}[:,]", one)]
        assert re.search(words, found), found
        assert len(found) < 500
    assert not (tmp_path / "run").exists()


def test_a_line_that_is_too_long_or_no_text_is_refused_by_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai_batch, "MOST_LINE_BYTES", 1000)
    with pytest.raises(SpecError, match="line 2 has more than 1,000 bytes"):
        Pipeline.from_yaml(write(tmp_path, [line("a"), line("b", body={"messages": ["x" * 1000]})]))
    job = write(tmp_path, [line("a")])
    with (tmp_path / "requests.jsonl").open("ab") as file:
        file.write(b'{"custom_id": "\xff\xfe"}\n')
    with pytest.raises(SpecError, match=r"requests.jsonl line 2: is not JSON"):
        Pipeline.from_yaml(job)
