"""What others put in place of a file is neither waited for nor followed nor believed, wherever we look."""

import gzip
import io
import json
import os
import random
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from evenload import _private_files
from evenload._private_files import (
    lines_within,
    open_own,
    open_plain,
    own_folder,
    read_named,
    read_own,
    read_plain,
    read_unpacked,
    text_named,
    whole_file,
    write_named,
    write_own,
)
from evenload._user_folders import user_cache
from evenload.cli import main
from evenload.devices.jobs import announced, jobs_folder, running_jobs
from evenload.devices.probes import child
from evenload.errors import ConfigError, EvenloadError
from evenload.events import EventFile, Note
from evenload.executor.journal.journal import Journal
from evenload.executor.loop.control import Control, ask
from evenload.executor.loop.cost_history import CostCache, Learned
from evenload.native import store
from evenload.pipeline import Pipeline
from evenload.pipeline.store.run_folder import is_in_use
from evenload.report.source import Follower, read_config

pytestmark = pytest.mark.skipif(os.name != "posix", reason="pipes, links and owners are a POSIX matter")

HUGE = 1 << 40
"""Bytes of a file that is one hole and takes no room; nobody may read it whole."""


def _socket_at(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the address of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(here)


def _link_to_elsewhere(path: Path) -> None:
    path.with_name("elsewhere").write_text("{}")
    path.symlink_to(path.with_name("elsewhere"))


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(HUGE)


THINGS: dict[str, Callable[[Path], Any]] = {
    "pipe": lambda path: os.mkfifo(path, 0o600),
    "socket": _socket_at,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "terminal": lambda path: path.symlink_to("/dev/tty"),
    "link": _link_to_elsewhere,
    "loop": _loop,
    "folder": lambda path: path.mkdir(),
    "huge file": _huge,
    "nothing": lambda path: None,
    "rubbish": lambda path: path.write_bytes(random.Random(1).randbytes(1000)),
    "list": lambda path: path.write_text("[1, 2]"),
    "depth": lambda path: path.write_text("[" * 60_000),
}


@pytest.fixture(params=THINGS)
def thing(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def plant(thing: str) -> Callable[[Path], Path]:
    """Put the thing at a path, in place of what is there."""

    def put(path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.unlink(missing_ok=True)
        THINGS[thing](path)
        return path

    return put


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


def test_nobody_waits_and_nobody_reads_more_than_a_bound(plant, thing, tmp_path):
    path = plant(tmp_path / "file")
    for read in (
        lambda: read_plain(path, 1000),
        lambda: read_named(path, 1000),
        lambda: read_unpacked(path, 1000),
        lambda: read_own(path, "a test", 1000),
        lambda: read_own(path, "a test", 1000, is_trusted=False),
    ):
        if thing == "rubbish" or thing == "list":
            assert read()
        elif thing == "link":
            with suppress(ConfigError):
                assert read() == b"{}"
        else:
            with pytest.raises((OSError, ConfigError)):
                read()


def test_a_link_is_not_followed_to_what_must_be_ours(tmp_path):
    _link_to_elsewhere(tmp_path / "link")
    assert read_plain(tmp_path / "link", 10) == b"{}"
    with pytest.raises(ConfigError, match="is a link"):
        open_own(tmp_path / "link", "a test", is_trusted=False)


def test_what_others_may_write_is_shown_and_not_believed(tmp_path):
    path = tmp_path / "file"
    write_own(path, b"x")
    path.chmod(0o664)
    assert read_own(path, "a test", 10, is_trusted=False) == b"x"
    with pytest.raises(ConfigError, match="open to others"):
        read_own(path, "a test", 10)


def test_what_is_another_users_is_neither(tmp_path, monkeypatch):
    write_own(tmp_path / "file", b"x")
    owner = os.geteuid()
    monkeypatch.setattr(_private_files.os, "geteuid", lambda: owner + 1)
    for is_trusted in (True, False):
        with pytest.raises(ConfigError, match="another user's"):
            open_own(tmp_path / "file", "a test", is_trusted=is_trusted)


def test_a_descriptor_is_closed_when_it_is_refused(plant, tmp_path):
    path = plant(tmp_path / "file")

    def is_open() -> bool:
        """Whether this process has it open; other threads may open others meanwhile."""
        numbers = Path("/proc/self/fd").glob("*")
        return any(os.path.realpath(number) == os.path.realpath(path) for number in numbers)

    for opener in (open_plain, lambda one: open_own(one, "a test")):
        with suppress(OSError, ConfigError):
            os.close(opener(path))
    assert not is_open()


@pytest.fixture(params=[0o000, 0o002, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def test_folders_and_files_are_ours_alone_whatever_the_umask(umask, tmp_path):
    folder = own_folder(tmp_path / "one" / "two", "a test")
    write_own(folder / "file", b"x")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "file").stat().st_mode) == 0o600
    with announced("job"):
        assert stat.S_IMODE(jobs_folder().stat().st_mode) == 0o700
        assert [job.name for job in running_jobs()] == ["job"]
    with Control(tmp_path, _Job()):
        assert stat.S_IMODE((tmp_path / "control").stat().st_mode) == 0o700


def test_writing_replaces_what_lies_there_and_opens_nothing(plant, thing, tmp_path):
    path = plant(tmp_path / "file")
    if thing == "folder":
        with pytest.raises(OSError, match="file"):
            write_own(path, b"mine")
    else:
        write_own(path, b"mine")
        assert path.read_bytes() == b"mine"
        assert not path.is_symlink()
    assert {one.name for one in tmp_path.iterdir()} <= {"file", "elsewhere"}, "no draft is left"


class _Job:
    """An executor as far as a control folder knows one."""

    is_paused = False

    class devices:
        ids = ("cpu:0",)

    def drain(self, *devices: str, at_once: bool = False) -> None: ...

    def add(self, devices: Any) -> tuple[str, ...]:
        return ()

    def pause(self) -> None: ...

    def resume(self) -> None: ...


def test_the_folder_of_announcements(plant, thing, tmp_path):
    plant(jobs_folder() / "1.json")
    with announced("good"):
        assert [job.name for job in running_jobs()] == ["good"]


def test_the_events_that_an_announcement_names(plant, thing, tmp_path, capsys):
    from evenload.cli.monitoring.top import FollowedJobs

    path = plant(tmp_path / "events.jsonl")
    with announced("good", events=None):
        (announcement,) = jobs_folder().glob("*.json")
        facts = json.loads(announcement.read_text())
        write_own(announcement, json.dumps({**facts, "events": str(path)}).encode())
        (row,) = FollowedJobs().look()
        assert (row.name, row.done) == ("good", None)
        if thing in ("pipe", "device", "link"):
            with pytest.raises(SystemExit):
                main(["dash", "--live", "--port", "0"])
            assert "is a " in capsys.readouterr().err


def test_a_runs_events(plant, thing, tmp_path):
    path = plant(tmp_path / "events.jsonl")
    for follower in (Follower(path), Follower(path, only_own=True)):
        assert follower.read() == []
    if thing == "nothing":
        with EventFile(path) as sink:
            sink(Note(0.0, "info", "x", "y"))
        assert len(Follower(path, only_own=True).read() or ()) == 1


@pytest.mark.parametrize("name", ["config.yaml", "job.json", "summary.json", "events.jsonl", "journal/lock"])
def test_a_run_folder(plant, thing, name, tmp_path, capsys):
    if (thing, name) == ("huge file", "events.jsonl"):
        pytest.skip("a record may be long: it is read in pieces, and all of it")
    folder = tmp_path / "run"
    plant(folder / name)
    with suppress(OSError):
        assert len(read_config(folder)) <= 40_000
    assert is_in_use(folder) is False
    with pytest.raises(EvenloadError):
        Pipeline.from_run(folder)
    for command in (["status", folder], ["report", folder, "--json"], ["retry", folder]):
        with pytest.raises(SystemExit):
            main([str(one) for one in command])
    capsys.readouterr()


def test_a_control_folder(plant, thing, tmp_path, until):
    """Whoever listens answers others all the same; whoever asks is told what is in the way."""
    with Control(tmp_path, _Job()):
        odd = plant(tmp_path / "control" / "0.ask")
        assert ask(tmp_path, "list") == ["cpu:0"]
        if thing in ("pipe", "rubbish", "list", "depth", "device", "huge file"):
            until((tmp_path / "control" / "0.answer").exists, "it is refused, and gone")
            assert not odd.exists()
        plant(tmp_path / "control" / "owner")
        with pytest.raises(ConfigError):
            ask(tmp_path, "list", wait_s=0.0)


def test_a_control_folder_that_is_no_folder_of_ours(plant, thing, tmp_path):
    plant(tmp_path / "control")
    if thing in ("folder", "nothing"):
        return
    with pytest.raises(ConfigError), Control(tmp_path, _Job()):
        pass
    with pytest.raises(ConfigError):
        ask(tmp_path, "list", wait_s=0.0)


def test_the_caches(plant, thing, tmp_path, monkeypatch):
    cache = CostCache(plant(tmp_path / "cache" / "costs.json"))
    assert cache.known("f", "1", []) == {}
    script = tmp_path / "x_child.py"
    script.write_text("print('[1]')")
    monkeypatch.setattr(child, "_key", lambda *_: "key")
    plant(user_cache() / "x_child-key.json")
    assert child.ask_child(script) == [1]
    monkeypatch.setenv("EVENLOAD_KERNEL_CACHE", str(tmp_path / "kernels"))
    plant(store.cache_directory() / "k-key.o")
    with suppress(ConfigError, OSError):
        assert store.kept("k", "key", lambda: b"code") == (b"code", False)
    from evenload.clients.tune.strategy_selector import TuningCache

    tuning = TuningCache.__new__(TuningCache)
    tuning._path = plant(tmp_path / "tuning.json")
    assert tuning._read() == {}


def test_costs_are_kept_where_a_link_or_a_pipe_lies(plant, thing, tmp_path):
    from evenload.devices import Device

    device = Device("cpu:0", "cpu", "cpu", "c", threads=1)
    path = plant(tmp_path / "cache" / "costs.json")
    cache = CostCache(path)
    cache.learn("f", "1", device, Learned(ceiling=3))
    cache.save()
    if thing != "folder":
        assert CostCache(path).known("f", "1", [device]) == {"cpu:0": Learned(ceiling=3)}


@pytest.mark.parametrize("name", ["journal.json", "lock", "segment-000001", "index.sqlite"])
def test_a_journal(plant, thing, name, tmp_path):
    if (thing, name) in (("huge file", "segment-000001"), ("huge file", "index.sqlite")):
        pytest.skip("results of ours may be as long")
    with Journal.open(tmp_path / "journal", "f") as journal:
        journal.record("k", b"v")
    plant(tmp_path / "journal" / name)
    with suppress(EvenloadError), Journal.open(tmp_path / "journal", "f") as journal:
        assert journal.done("k") in (None, b"v")


@pytest.mark.parametrize("place", ["evenload.toml", "config/evenload.toml"])
def test_settings(plant, thing, place, tmp_path):
    from evenload.settings import resolve, user_file

    plant(tmp_path / place if place == "evenload.toml" else user_file())
    if thing in ("nothing", "link"):
        with suppress(ConfigError):
            assert resolve({})
    else:
        with pytest.raises(ConfigError):
            resolve({})


@pytest.fixture(scope="module", autouse=True)
def no_thread_waits_for_a_pipe():
    """Fails this file if a thread of ours is left that was not there before."""
    before = set(threading.enumerate())
    yield
    left = set(threading.enumerate()) - before
    assert [one.name for one in left if "evenload" in one.name] == []


def test_a_pipe_of_the_shell_is_read_and_not_without_end():
    """Oracle: bash itself, whose ``<(...)`` is a pipe of a program that still writes."""
    program = (
        "import sys; from evenload._private_files import read_named; print(len(read_named(sys.argv[1], 9)))"
    )
    for writes, said in (("sleep 0.2; printf 12345", "5"), ("cat /dev/zero", "more than 9 bytes")):
        command = ["bash", "-c", f'"$0" -c "$1" <({writes}) 2>&1', sys.executable, program]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
        assert said in done.stdout


def test_a_text_is_utf8(tmp_path):
    (tmp_path / "a").write_bytes(b"caf\xe9")
    with pytest.raises(ConfigError, match="no text in UTF-8"):
        text_named(tmp_path / "a", 10, "a test")


@pytest.mark.parametrize("n_bytes", [0, 1, 1000, 1001, 100_000])
def test_what_comes_out_of_gzip_has_a_limit(tmp_path, n_bytes):
    """Oracle: Python's gzip, of as many bytes as the limit, and of more."""
    path, content = tmp_path / "x.json.gz", b"x" * n_bytes
    for packed in (content, gzip.compress(content)):
        path.write_bytes(packed)
        if n_bytes <= 1000:
            assert read_unpacked(path, 1000) == content
        else:
            with pytest.raises(OSError, match="more than 1,000 bytes"):
                read_unpacked(path, 1000)


def test_a_bomb_is_not_unpacked_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(_private_files, "_FREE_BYTES", 1000)
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(10_000_000)))
    with pytest.raises(OSError, match="more than"):
        read_unpacked(path, 1 << 40)
    for damaged in (path.read_bytes()[:-5], b"\x1f\x8brubbish", path.read_bytes()[:20] + b"rubbish"):
        path.write_bytes(damaged)
        with pytest.raises(OSError, match=r"damaged gzip|more than"):
            read_unpacked(path, 1 << 40)


def test_what_the_command_line_names_gets_the_text_and_stays_what_it_is(tmp_path):
    """Oracle: whoever reads the other end, and the kernel's word of what lies there."""
    pipe, mine, theirs = tmp_path / "pipe", *os.pipe()
    os.mkfifo(pipe)
    with pytest.raises(ConfigError, match="cannot write"):  # nobody reads, and nobody is waited for
        write_named(pipe, "lost")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    for path, end in ((pipe, reader), (Path(f"/dev/fd/{theirs}"), mine)):
        write_named(path, "whole\n")
        assert os.read(end, 100) == b"whole\n"
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    with (tmp_path / "log").open("w") as log:
        log.write("before\n")
        log.flush()
        write_named(Path(f"/dev/fd/{log.fileno()}"), "after\n")
    assert (tmp_path / "log").read_text() == "before\nafter\n"
    (tmp_path / "null").symlink_to(os.devnull)
    write_named(tmp_path / "null", "gone")
    assert sorted(os.listdir(tmp_path)) == ["log", "null", "pipe"]
    for fd in (mine, theirs, reader):
        os.close(fd)


def test_lines_have_a_limit():
    assert list(lines_within(io.BytesIO(b"a\n\nbcd"), "f", 3)) == [b"a\n", b"\n", b"bcd"]
    with pytest.raises(OSError, match="line 2 has more than 3 bytes") as caught:
        list(lines_within(io.BytesIO(b"a\nabc\n"), "f", 3))
    assert caught.value.filename == "f"


def test_what_fails_on_the_way_leaves_the_file_as_it_was(tmp_path):
    """Oracle: the folder's list of names, and the content of before."""
    path = tmp_path / "plan.json"
    path.write_bytes(b"old")
    with suppress(KeyError), whole_file(path) as file:
        file.write(b"half of the n")
        raise KeyError
    assert (os.listdir(tmp_path), path.read_bytes()) == (["plan.json"], b"old")


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_a_whole_file_may_be_used_by_whom_it_is_for(tmp_path, mode):
    with whole_file(tmp_path / "file", mode) as file:
        file.write(b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o666])
@pytest.mark.parametrize("umask", [0o077, 0o022, 0o002])
def test_a_whole_file_obeys_the_umask(tmp_path, umask, mode):
    """Oracle: a file that Python's own open makes at the same time."""
    before = os.umask(umask)
    try:
        (tmp_path / "plain").write_bytes(b"")
        with whole_file(tmp_path / "file", mode) as file:
            file.write(b"new")
    finally:
        os.umask(before)
    plain, made = (stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "file"))
    assert made == plain & mode
