"""Results copied to real servers while a job runs: by HTTP with faults, to S3, to another file system."""

import json
import threading
import urllib.parse
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from pipeline.local_server import Answers, LocalServer
from pipeline.written_jobs import write_job

from evenload.cli import main
from evenload.errors import SpecError
from evenload.events import RunStarted, read_events
from evenload.pipeline import Pipeline
from evenload.pipeline.run.ending.uploading import upload_run

STAGE = """
import numpy as np
class Draw:
    def __call__(self, inputs, item):
        if item.id == "bad":
            raise ValueError("no")
        return {"drawn": np.full((4, 4, 3), item.index / 9), "note": item.id}
class Score:
    def __call__(self, inputs, item):
        return {"score": 1.0}
"""
JOB = """\
  - {name: draw, target: 'stages.py:Draw', outputs: {drawn: png, note: txt}}
  - {name: score, target: 'stages.py:Score'}
"""
TOKEN = "a-token-that-nobody-may-see"
IDS = ("a", "b/c d", "e%2F#?", "ö", "f.txt")


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return write_job(tmp_path, STAGE, JOB, [{"id": name} for name in IDS], more="")


class Server(LocalServer):
    """A server that keeps what is put, by path; each file fails a few times before it is taken."""

    refuses = False
    most_failures = 0

    def __init__(self) -> None:
        super().__init__(Handler)
        self.url += "/run"
        self.files: dict[str, bytes] = {}
        self.puts: Counter[str] = Counter()


class Handler(Answers):
    def do_PUT(self) -> None:
        content = b""
        while n_bytes := int(self.rfile.readline(), 16):
            content += self.rfile.read(n_bytes)
            self.rfile.readline()
        self.rfile.readline()
        self.server.puts[self.path] += 1
        n_failures = zlib.crc32(self.path.encode()) % (self.server.most_failures + 1)
        answer = (503, 429, 500)[n_failures % 3] if self.server.puts[self.path] <= n_failures else 201
        if self.headers.get("Authorization") != f"Bearer {TOKEN}" or self.server.refuses:
            answer = 403
        if answer < 300:
            self.server.files[urllib.parse.unquote(self.path)] = content
        self._answer(answer, f"{self.path} {self.headers.get('Authorization')}".encode())

    def do_HEAD(self) -> None:
        content = self.server.files.get(urllib.parse.unquote(self.path))
        self._answer(404 if content is None else 200, content or b"")

    def _answer(self, code: int, content: bytes) -> None:
        self.say(code, content, reason="reason " + TOKEN if code >= 400 else None)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server that lets in who has the token, which fsspec has been told."""
    settings = {"client_kwargs": {"headers": {"Authorization": f"Bearer {TOKEN}"}}}
    monkeypatch.setenv("FSSPEC_HTTP", json.dumps(settings))
    monkeypatch.setitem(fsspec.config.conf, "http", settings)
    fsspec.get_filesystem_class("http").clear_instance_cache()
    with Server().serving() as serving:
        yield serving
    fsspec.get_filesystem_class("http").clear_instance_cache()


def files_of(run: Path) -> dict[str, bytes]:
    """What a copy of the run must have."""
    names = ("journal", "uploads.jsonl", "job.json")
    files = (path for path in run.rglob("*") if path.is_file())
    named = {path.relative_to(run).as_posix(): path.read_bytes() for path in files}
    return {name: content for name, content in named.items() if not name.startswith(names)}


def test_a_server_that_fails_now_and_then_has_all_in_the_end(job: Path, server: Server, monkeypatch) -> None:
    monkeypatch.setattr("evenload.pipeline.store.uploads.pause_s", lambda *args: 0.0)
    server.most_failures = 4
    result = Pipeline.from_yaml(job, [f"upload={server.url}"]).run(backend="inline")
    run = job.parent / "runs/t"
    far = {name.removeprefix("/run/"): content for name, content in server.files.items()}
    assert far.pop("SHA256SUMS").count(b"\n") == len(far) == len(files_of(run))
    assert far == files_of(run)
    assert (result.exit_code, result.faults) == (0, [])
    assert result.upload == {"to": server.url, "n_files": len(far), "n_new": len(far), "n_left": 0, "why": ""}
    n_puts = server.puts.total()
    assert n_puts > len(far) + 5
    again = Pipeline.from_yaml(job, [f"upload={server.url}"]).run(backend="inline")
    assert again.upload is not None
    assert again.upload["n_new"] < len(far) - 2 * len(IDS) + 1, "none of the stages' files"
    assert {name.removeprefix("/run/") for name in server.files} - {"SHA256SUMS"} == files_of(run).keys()
    assert server.puts.total() > n_puts, "the records of the run are new"


def test_who_is_not_let_in_is_told_without_the_secret_and_with_the_command(
    job: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.refuses = True
    with pytest.raises(SystemExit) as ended:
        main(["run", str(job), "--upload", server.url, "--backend", "inline", "--no-progress", "--json"])
    said = capsys.readouterr()
    run = job.parent / "runs/t"
    assert ended.value.code == 1
    assert f"copy them: evenload upload {run}" in said.err
    assert "403" in said.err
    told = json.loads(said.out)
    assert (told["status"], told["n_done"], told["upload"]["n_files"]) == ("done", len(IDS), 0)
    everything = said.out + said.err + "".join(p.read_text("utf-8", "replace") for p in run.rglob("*.json*"))
    assert TOKEN not in everything
    server.refuses = False
    with pytest.raises(SystemExit) as ended:
        main(["upload", str(run), "--no-progress"])
    assert ended.value.code == 0
    assert f"files at {server.url}" in capsys.readouterr().out
    assert {name.removeprefix("/run/") for name in server.files} - {"SHA256SUMS"} == files_of(run).keys()


def test_files_are_copied_while_the_job_runs(job: Path, server: Server) -> None:
    """The second stage waits, for each item, until the file of the first one is there."""
    waits = """
        import pathlib, time
        while not pathlib.Path(inputs["gate"]).exists():
            time.sleep(0.01)
"""
    text = STAGE.replace('        return {"score"', waits + '        return {"score"')
    (job.parent / "stages.py").write_text(text)
    rows = [{"id": name, "gate": str(job.parent / f"gate.{name}")} for name in ("one", "bad", "two")]
    (job.parent / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def open_gates() -> None:
        while not is_over.wait(0.01):
            for row in rows:
                if f"/run/outputs/draw/{row['id']}.note.txt" in server.files:
                    Path(row["gate"]).touch()

    is_over = threading.Event()
    thread = threading.Thread(target=open_gates)
    thread.start()
    try:
        result = Pipeline.from_yaml(job, [f"upload={server.url}"]).run(backend="inline")
    finally:
        is_over.set()
        thread.join(timeout=500)
    assert result.status == "failures"
    assert server.files["/run/results.jsonl"] == (result.folder / "results.jsonl").read_bytes()
    assert not any("bad" in name for name in server.files)


@pytest.mark.parametrize(
    ("upload", "said"),
    [
        ({"to": "/tmp/x"}, "no address that results can be copied to"),
        ({"to": "https://u:p@host/x"}, "holds a name or password"),
        ({"to": "memory://x", "stages": ["score"]}, "'score' makes no files; stages that make files: draw"),
        ({"to": "memory://x", "stages": ["darw"]}, "there is no stage 'darw'"),
        ({"to": "memory://x", "stage": ["draw"]}, "did you mean 'stages'"),
        ({"to": "memory://x", "stages": "draw"}, r"a list, such as \[a, b\], not 'draw'"),
        (True, "a section of keys and values, not True"),
        ({}, "is required"),
    ],
)
def test_faults_of_the_section_are_told_before_any_work(job: Path, upload: dict[str, Any], said: str) -> None:
    job.write_text(f"{job.read_text()}upload: {json.dumps(upload)}\n")
    with pytest.raises(SpecError, match=said):
        Pipeline.from_yaml(job)


def test_a_folder_of_another_file_system_has_whole_files(job: Path, tmp_path: Path) -> None:
    result = Pipeline.from_yaml(job, [f"upload=file://{tmp_path}/far"]).run(backend="inline")
    files = [path for path in (tmp_path / "far").rglob("*") if path.is_file()]
    far = {path.relative_to(tmp_path / "far").as_posix() for path in files}
    assert far == {*files_of(result.folder), "SHA256SUMS"}
    (tmp_path / "far/outputs/draw/a.note.txt").write_text("cut")
    assert upload_run(result.folder).n_new == 1
    assert (tmp_path / "far/outputs/draw/a.note.txt").read_text() == "a"
    assert upload_run(result.folder, f"file://{tmp_path}/elsewhere").n_left == 0
    head = (result.folder / "uploads.jsonl").read_text().partition("\n")[0]
    assert json.loads(head)["to"] == f"file://{tmp_path}/elsewhere"


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A server of the protocol of S3 with one bucket, and its file system."""
    moto_server = pytest.importorskip("moto.server", reason="moto is not installed")
    serving = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    serving.start()
    host, port = serving.get_host_and_port()
    for name, value in (("AWS_ACCESS_KEY_ID", "testing"), ("AWS_SECRET_ACCESS_KEY", "testing-secret")):
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(fsspec.config.conf, "s3", {"endpoint_url": f"http://{host}:{port}"})
    store = fsspec.filesystem("s3")
    store.mkdir("bucket")
    yield store
    type(store).clear_instance_cache()
    serving.stop()


@pytest.mark.slow  # a server of S3 is 60 MB of modules
def test_s3_has_the_bytes_and_gives_them_back(job: Path, s3: Any) -> None:
    result = Pipeline.from_yaml(job, ["upload=s3://bucket/runs/up"]).run(backend="inline")
    s3.invalidate_cache()
    begin = "bucket/runs/up/"
    far = {name.removeprefix(begin): s3.cat_file(name) for name in s3.find(begin)}
    assert far.pop("SHA256SUMS")
    assert far == files_of(result.folder)
    s3.pipe_file("bucket/runs/up/outputs/draw/a.note.txt", b"")
    s3.rm_file("bucket/runs/up/outputs/draw/a.drawn.png")
    assert upload_run(result.folder).n_new == 2
    nowhere = upload_run(result.folder, "s3://no-such-bucket/x")
    assert nowhere.n_files == 0
    assert "no-such-bucket" in nowhere.why.replace("bucket does not exist", "")
    addresses = [f"s3://{begin}outputs/draw/{name}.note.txt" for name in ("a", "f.txt")]
    rows = [{"id": str(at), "path": address} for at, address in enumerate(addresses)]
    (job.parent / "copied.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    back = Pipeline.from_yaml(job, ["job.inputs.jsonl=copied.jsonl"])
    assert [Path(values["path"]).read_text() for _, values in back.items] == ["a", "f.txt"]


def test_retry_keeps_to_the_backend_and_the_store_of_the_job(job: Path, tmp_path: Path) -> None:
    job.write_text(f"{job.read_text()}backend: inline\nupload: 'file://{tmp_path}/far'\n")
    for command in (["run", str(job)], ["retry", "--failed", str(tmp_path / "runs/t")]):
        with pytest.raises(SystemExit) as ended:
            main([*command, "--no-progress", "--quiet"])
        assert ended.value.code == 0
    begun = [event for event in read_events(tmp_path / "runs/t") if isinstance(event, RunStarted)]
    assert [event.facts["backend"] for event in begun] == ["inline", "inline"]
    far, here = (folder / "events.jsonl" for folder in (tmp_path / "far", tmp_path / "runs/t"))
    assert far.read_bytes() == here.read_bytes()
