"""Escape sequences in every place where words of strangers come in: no command prints one."""

import dataclasses
import json
import os
import random
import typing
import unicodedata
import zlib
from contextlib import suppress
from typing import Any

import pytest

from evenload.cli import devices as devices_command
from evenload.cli import main
from evenload.cli.monitoring.top import FollowedJobs
from evenload.devices import Device, DevicePool, ProbeReport
from evenload.devices.jobs import jobs_folder
from evenload.events import Event, EventLog, RunStarted, StageStarted, WorkerStarted, encode
from evenload.executor.decide.record import Record
from evenload.executor.loop import control
from evenload.report.progress import Progress, _Bar, _Lines, _OneLine

SEQUENCES = [
    "\x1b[8m", "\x1b[2J", "\x1b[1;1H", "\x1b]0;title\x07", "\x1b]52;c;cm0gLXJm\x1b\\", "\x1bc", "\x9b5;41m",
    "\x9d0;t\x9c", "\r", "\x08", "\x7f", "\u202e", "\u2066", "\u2028",
]  # fmt: skip
OBEYED = ("\x1b[8m", "\x9b", "\x1b]", "\x1bc", "\x1b[1;1H", "\x1b[2J")
DIRECTIONS = {*map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A)), "\u2028", "\u2029"}
SEEDS = range(2)


def obeyed(text: str) -> set[str]:
    return {one for one in text if unicodedata.category(one) in ("Cc", "Cs")} - {"\n", "\t"} | (
        DIRECTIONS & set(text)
    )


class Stranger:
    """A source of words with escape sequences in them, the same for the same seed."""

    def __init__(self, seed: int):
        self._random = random.Random(seed)

    def word(self) -> str:
        pieces = [self._random.choice([*SEQUENCES, "edit", "é", " ", "界"]) for _ in range(4)]
        return "w" + "".join([*pieces, self._random.choice(SEQUENCES)])

    def value(self, kind: Any) -> Any:
        """A value for a field of an event, with such words wherever there can be words."""
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if kind is str or kind is Any:
            return self.word()
        if kind in (int, float, bool):
            return kind(self._random.randrange(1, 4))
        if arguments and type(None) in arguments:
            return self.value(next(one for one in arguments if one is not type(None)))
        if origin is tuple or (origin and issubclass(origin, typing.Sequence)):
            return [self.value(arguments[0])] if arguments else []
        if origin and issubclass(origin, typing.Mapping):
            return {self.value(arguments[0]): self.value(arguments[1])}
        return None

    def event(self, kind: type, **chosen: Any) -> Any:
        hints = typing.get_type_hints(kind)
        return kind(**{name: chosen.get(name, self.value(hints[name])) for name in _names(kind)})


def _names(kind: type) -> list[str]:
    return [one.name for one in dataclasses.fields(kind)]


@pytest.fixture(params=SEEDS)
def stranger(request):
    return Stranger(zlib.crc32(request.node.name.encode()) + request.param)


@pytest.fixture
def call(capsys, monkeypatch, tmp_path):
    """Run a command; its output, checked, after what stood there before."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def command(*arguments: object) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit):
            main([str(one) for one in arguments])
        out, err = capsys.readouterr()
        assert obeyed(out) == set(), out
        assert obeyed(err) == set(), err
        if "--json" in arguments and out:
            json.loads(out)
        return out + err

    return command


@pytest.fixture
def run_folder(stranger, tmp_path):
    """A run whose every text, of every kind of event, is a stranger's."""
    folder = tmp_path / "run \x1b[2J"
    folder.mkdir()
    events = [stranger.event(kind) for kind in typing.get_args(Event) for _ in range(3)]
    stage, device = stranger.word(), stranger.word()
    events += [
        stranger.event(kind, **{name: stage for name in ("stage",) if name in _names(kind)}, device=device)
        if "device" in _names(kind)
        else stranger.event(kind)
        for kind in typing.get_args(Event)
    ]
    lines = [encode(one) for one in events] + [json.dumps({"event": stranger.word()}), stranger.word()]
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8", errors="replace")
    (folder / "config.yaml").write_text(stranger.word())
    counts = {"counts": {"items": stranger.word(), "samples": stranger.word()}}
    (folder / "summary.json").write_text(json.dumps(counts))
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        ("status", "RUN"),
        ("status", "RUN", "--json"),
        ("report", "RUN"),
        ("report", "RUN", "--json"),
        ("report", "RUN", "--text"),
        ("report", "RUN", "RUN"),
        ("retry", "RUN"),
        ("devices", "drain", "\x1b[8mcpu:0", "--run", "RUN"),
        ("dash", "NONE"),
        ("plan", "WORDS.yaml"),
        ("run", "WORDS.yaml"),
        ("run", "NONE"),
        ("clients", "run", "WORDS.yaml"),
        ("map", "json:loads", "WORDS.txt", "--backend", "inline", "--devices", "cpu"),
        ("map", "builtins:str", "WORDS.txt", "--backend", "inline", "--devices", "cpu"),
        ("map", "builtins:str", "WORDS.txt", "--backend", "inline", "--devices", "cpu", "--json"),
        ("map", "no\x1b[8m:such", "WORDS.txt"),
        ("merkle", "root", "NONE"),
        ("merkle", "verify", "WORDS.txt", "WORDS.txt"),
        ("moe", "replay", "WORDS.txt"),
        ("moe", "place", "WORDS.yaml"),
        ("zk", "prove", "WORDS.txt", "WORDS.txt"),
        ("zk", "verify", "WORDS.txt", "WORDS.txt", "WORDS.txt"),
        ("zk", "info", "WORDS.txt"),
        ("simulate", "WORDS.yaml"),
        ("no \x1b[8m command",),
        ("devices", "--no\x9b8moption"),
    ],
    ids=lambda arguments: " ".join(arguments[:3]).encode("ascii", "replace").decode().replace("\x1b", ""),
)
def test_a_command_prints_no_sequence_of_a_file_or_an_argument(
    call, stranger, run_folder, tmp_path, arguments
):
    words = [stranger.word() for _ in range(6)]
    (tmp_path / "WORDS.txt").write_text("\n".join(map(json.dumps, words)), encoding="utf-8")
    job = dict.fromkeys(words, words) | {"job": {"name": words[0]}, "stages": words}
    (tmp_path / "WORDS.yaml").write_text(json.dumps(job))
    places = {"RUN": run_folder, "NONE": tmp_path / words[1].replace("/", "")}
    places |= {name: tmp_path / name for name in ("WORDS.txt", "WORDS.yaml")}
    assert call(*(places.get(one, one) for one in arguments))


def test_the_words_of_an_announcement_and_its_events(call, stranger, run_folder, monkeypatch):
    monkeypatch.setattr(DevicePool, "discover", lambda: DevicePool(_devices(stranger)))
    jobs_folder().mkdir(parents=True, mode=0o700)
    page = {"pid": os.getpid(), "unix_s": 0.0, "name": stranger.word(), "command": stranger.word()}
    page |= {"events": str(run_folder / "events.jsonl"), "page": stranger.word()}
    (jobs_folder() / "1.json").write_text(json.dumps(page))
    assert len(FollowedJobs().look()) == 1
    assert "no job" not in call("top", "--once")
    (row,) = json.loads(call("top", "--once", "--json"))["jobs"]
    assert (row["name"], row["command"]) == (page["name"], page["command"]), "JSON has the words as they are"


def _devices(stranger: Stranger) -> list[Device]:
    return [
        Device(f"cpu:{i}", "cpu", "cpu", stranger.word(), 32 << 30, 16, threads=1, uuid=stranger.word())
        for i in range(2)
    ]


@pytest.mark.parametrize("color", ["never", "always"])
def test_the_words_of_a_driver(call, stranger, monkeypatch, color, capsys):
    word = stranger.word
    reports = [
        ProbeReport("cuda", status="failed", reason=word(), hint=word(), notes=(word(),), traceback=word()),
        ProbeReport("cpu", tuple(_devices(stranger)), notes=(word(),)),
    ]
    monkeypatch.setattr(devices_command, "CPU_READING_S", 0)
    monkeypatch.setattr(DevicePool, "discover", lambda: DevicePool(_devices(stranger), reports=reports))
    monkeypatch.setattr("evenload.cli.doctor.run_probes", lambda probes: tuple(reports))
    monkeypatch.setenv("EVENLOAD_POLICY", word())
    call("devices", "--json")
    call("doctor", "--json")
    for command in (["devices"], ["doctor", "-v"]):
        with suppress(SystemExit):
            main([*command, "--color", color])
        out, err = capsys.readouterr()
        for own in ("\x1b[1m", "\x1b[0m", "\x1b[31m", "\x1b[32m", "\x1b[33m"):
            out = out.replace(own, "") if color == "always" else out
        assert obeyed(out + err) == set(), out


def test_the_words_of_a_control_folder(call, stranger, tmp_path):
    folder = tmp_path / "run" / "control"
    folder.mkdir(parents=True, mode=0o700)
    for facts in ({"host": stranger.word(), "pid": stranger.word()}, {stranger.word(): 1}, stranger.word()):
        (folder / "owner").write_text(json.dumps(facts))
        answer = {"error": stranger.word(), "hint": stranger.word()}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(control.time, "monotonic_ns", lambda: 1)
            (folder / f"{os.getpid()}-1.answer").write_text(json.dumps(answer))
            assert "error" in call("devices", "drain", "cpu:0", "--run", tmp_path / "run")


def test_the_words_of_a_worker(stranger, capsys):
    """In a program of the user, whose streams are not ours to filter."""
    log = EventLog()
    for record in (Record(log), Record(None)):
        record.said(stranger.word(), stranger.word())
        record.note("warning", stranger.word())
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 4
    assert obeyed(err) == set()


@pytest.mark.parametrize("drawing", ["_Lines", "_OneLine", "_Bar"])
def test_the_words_in_progress(stranger, drawing, monkeypatch, tmp_path):
    monkeypatch.setenv("TERM", "xterm-256color")
    path = tmp_path / "drawn"
    kinds = {"_Lines": _Lines, "_OneLine": _OneLine, "_Bar": lambda to: _Bar(to, is_forced=True)}
    with path.open("w", encoding="utf-8") as stream:
        progress = Progress(kinds[drawing](stream))
        progress(stranger.event(RunStarted))
        progress(StageStarted(0.0, stranger.word(), 3))
        progress(WorkerStarted(0.0, stranger.word(), "w", 1, 0.0))
        progress.close()
        assert progress.error is None
    drawn = path.read_text(encoding="utf-8")
    assert drawn
    for sequence in OBEYED:
        assert sequence not in drawn
    if drawing == "_Lines":
        assert obeyed(drawn) == set()


PROGRAM = """
import sys, evenload
def said(x):
    print(x); print(x, file=sys.stderr); sys.stdout.write("10%\\r100%" + x + "\\n")
    raise ValueError(x)
words = {words!r}
for result in evenload.map(said, words, devices="cpu*2", on_error="return"):
    try:
        str(result)
        raise result
    except evenload.errors.EvenloadError as error:
        print(error, file=sys.stderr)
"""


@pytest.mark.parametrize("stranger", [0], indirect=True)
def test_a_workers_output_on_a_real_terminal(stranger, tmp_path, in_a_terminal):
    """A program that maps over workers, with its standard error on a terminal."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.format(words=[stranger.word() for _ in range(3)]), encoding="utf-8")
    code, text = in_a_terminal(str(script), TERM="xterm-256color", XDG_CACHE_HOME=str(tmp_path))
    assert code == 0
    assert "100%w" in text
    assert "10%" not in text.replace("100%", "")
    for sequence in (*OBEYED, "\x9d", "\x08", *DIRECTIONS):
        assert sequence not in text
