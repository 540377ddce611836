"""Who is told that a run has ended: a command or an address, whatever they do with it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pipeline.local_server import Answers, LocalServer
from pipeline.written_jobs import write_job

from evenload.errors import SpecError
from evenload.pipeline import Pipeline
from evenload.pipeline.job.job_file import parse_spec
from evenload.pipeline.run.ending.on_done import MOST_SENT_BYTES, _body, tell_done

STAGE = """
class Draw:
    def __call__(self, inputs, item):
        if inputs.get("bad"): raise ValueError("bad")
        return {"drawn": item.id}
"""
TELL = """
import json, os, sys
told = {name: value for name, value in os.environ.items() if name.startswith("EVENLOAD_RUN_")}
print("to stdout")
with open("told.json", "w") as file: json.dump([told, sys.argv[1:], sys.stdin.read()], file)
"""


class Server(LocalServer):
    """Answers with the codes of ``answers``, one after the other; the last one again and again."""

    def __init__(self) -> None:
        super().__init__(Handler)
        self.answers: list[int | str] = [200]
        self.bodies: list[dict[str, Any]] = []
        self.seen: list[tuple[str, str, str | None]] = []


class Handler(Answers):
    def do_POST(self) -> None:
        self.server.bodies.append(json.loads(self.read()))
        self.do_GET()

    def do_GET(self) -> None:
        answers = self.server.answers
        self.server.seen.append((self.command, self.path, self.headers["Authorization"]))
        answer = answers[0] if len(answers) == 1 else answers.pop(0)
        if answer == "cut":
            self.connection.close()
        elif isinstance(answer, str):
            self.say(307, Location=answer)
        else:
            self.say(answer)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server().serving() as serving:
        yield serving


def pipeline(folder: Path, on_done: Any) -> Pipeline:
    (folder / "tell.py").write_text(TELL)
    (folder / "tell.py").chmod(0o755)  # and no word of its interpreter
    more = f"report: {{html: false, trace: false}}\non_done: {json.dumps(on_done)}\n"
    stage = "  - {name: draw, target: 'stages.py:Draw'}\n"
    return Pipeline.from_yaml(
        write_job(folder, STAGE, stage, [{"id": "a"}, {"id": "b", "bad": 1}, {"id": "c"}], more=more)
    )


def test_a_command_is_told_in_its_environment(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    result = pipeline(tmp_path, ["python3", "tell.py", "a b; $HOME"]).run(backend="inline")
    told, arguments, asked = json.loads((tmp_path / "told.json").read_text())
    assert (arguments, asked) == (["a b; $HOME"], ""), "no shell, no input"
    assert told == {
        "EVENLOAD_RUN_FOLDER": str(result.folder), "EVENLOAD_RUN_STATUS": "failures",
        "EVENLOAD_RUN_ITEMS": "3", "EVENLOAD_RUN_DONE": "2", "EVENLOAD_RUN_FAILED": "1",
        "EVENLOAD_RUN_FILTERED": "0", "EVENLOAD_RUN_UNFINISHED": "0",
    }  # fmt: skip
    assert not result.faults
    assert capfd.readouterr().out == "", "stdout is the run's"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["python3", "-c", "print('no room'); raise SystemExit(3)"], "ended with exit code 3: 'no room'"),
        (["python3", "-c", "import os, signal; os.kill(os.getpid(), 9)"], "was ended by signal 9"),
        (["./tell.py"], "cannot be started"),
    ],
)
def test_a_command_that_fails_is_a_fault_and_changes_nothing_else(tmp_path: Path, command, said) -> None:
    result = pipeline(tmp_path, command).run(backend="inline")
    assert (result.status, result.n_done, result.exit_code) == ("failures", 2, 1)
    assert any(said in fault for fault in result.faults), result.faults


def test_a_command_that_does_not_end_is_ended_with_all_that_it_began(tmp_path: Path, until) -> None:
    code = "import subprocess, time; p = subprocess.Popen(['sleep', '1000']); print(p.pid, flush=True); "
    code += "open('pid', 'w').write(str(p.pid)); time.sleep(1000)"
    on_done = {"command": ["python3", "-c", code], "timeout_s": 2}
    result = pipeline(tmp_path, on_done).run(backend="inline")
    assert any("was ended after 2 s" in fault for fault in result.faults)
    if (tmp_path / "pid").exists() and (pid := (tmp_path / "pid").read_text()):
        until(lambda: not is_alive(pid), "what the command had begun has ended")


def is_alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_an_address_gets_the_summary_after_it_was_busy(tmp_path: Path, server: Server, monkeypatch) -> None:
    monkeypatch.setenv("HOOK", f"{server.url}/hook")
    monkeypatch.setenv("TOKEN", "secret")
    server.answers = [503, "cut", 429, 204]
    result = pipeline(tmp_path, None).run(backend="inline")
    job = pipeline(tmp_path, {"url_env": "HOOK", "token_env": "TOKEN"})
    pauses: list[float] = []
    assert tell_done(job.spec.on_done, result, "told", tmp_path, pauses.append) == []
    assert len(pauses) == 3
    assert pauses == sorted(pauses)
    assert server.seen == [("POST", "/hook", "Bearer secret")] * 4
    told = server.bodies[-1]
    assert (told["schema"], told["job"], told["status"], told["n_done"]) == (1, "told", "failures", 2)
    assert told["failures"][0]["id"] == "b"
    assert "secret" not in (result.folder / "config.yaml").read_text()


@pytest.mark.parametrize("where", ["/elsewhere", "http://127.0.0.1:1/other", "file:///etc/passwd"])
def test_no_redirect_is_followed(tmp_path: Path, server: Server, where: str) -> None:
    server.answers = [where]
    result = pipeline(tmp_path, f"{server.url}/hook").run(backend="inline")
    assert result.faults == ["on_done: 127.0.0.1 answered 307, and was not told"]
    assert len(server.seen) == 1


def test_an_address_that_nobody_answers_is_a_fault_without_its_secrets(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HOOK", "http://127.0.0.1:1/services/secret")
    job = pipeline(tmp_path, {"url_env": "HOOK", "retries": 2, "timeout_s": 5})
    result = pipeline(tmp_path, None).run(backend="inline")
    pauses: list[float] = []
    faults = tell_done(job.spec.on_done, result, "told", tmp_path, pauses.append)
    assert len(pauses) == 2
    assert faults == ["on_done: 127.0.0.1 cannot be reached (URLError), and was not told"]


def test_what_is_sent_is_bounded() -> None:
    small = {"status": "done", "failures": [], "summary": {}, "headline": {}}
    assert json.loads(_body(small)) == small
    for name in ("failures", "summary", "headline"):
        cut = json.loads(_body(small | {name: ["x" * MOST_SENT_BYTES]}))
        assert cut["is_cut"]
        assert cut["status"] == "done"
        assert name not in cut


@pytest.mark.parametrize(
    ("on_done", "said"),
    [
        ("{}", "give exactly one of command, url, url_env; given: none"),
        ("{url: 'http://h/', command: [ls]}", "given: command, url"),
        ("'ftp://host/x'", "is no address of a server"),
        ("'http://'", "is no address of a server"),
        ("'http://h:99999/'", "is no address of a server"),
        ("'http://me:pass@host/'", "it holds a password"),
        ("[no-such-program-here, x]", "there is no program 'no-such-program-here'"),
        ("{url_env: NO_SUCH_VARIABLE_HERE}", "the environment has no NO_SUCH_VARIABLE_HERE"),
        ("{url: 'http://h/', retries: 1000}", "less than or equal to 20"),
    ],
)
def test_a_section_that_tells_nobody_is_refused_with_its_line(tmp_path: Path, on_done, said) -> None:
    text = 'version: 1\njob: {name: j, inputs: {jsonl: r.jsonl}}\nstages: [{name: s, target: "json.decoder:'
    text += f'JSONDecoder"}}]\non_done: {on_done}\n'
    (tmp_path / "r.jsonl").write_text("{}")
    with pytest.raises(SpecError) as refused:
        parse_spec(text, tmp_path)
    assert all("(line 4)" in place for place, _ in refused.value.faults)
    assert any(said in fault for _, fault in refused.value.faults), refused.value.faults
