"""Copies of a run's files: through random faults, kills and changes, each whole and none twice."""

import hashlib
import os
import random
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from evenload.errors import ConfigError
from evenload.pipeline.artifacts import write_atomically
from evenload.pipeline.run.ending.uploading import finish_uploads, upload_run
from evenload.pipeline.run.interrupts import Interrupts
from evenload.pipeline.store.uploads import (
    RECORD,
    Destination,
    SendLimits,
    UploadOutcome,
    Uploads,
    last_destination,
)

TO = Destination("s3://bucket/run")
ONCE = SendLimits(retries=0)


class FaultyStore:
    """A folder as a store, which fails as ``fault_of`` says of each path: "" | before | after | forbidden."""

    n_at_once = 3

    def __init__(self, folder: Path, fault_of: Callable[[str], str] = lambda path: ""):
        self.folder, self.fault_of, self.lists = folder, fault_of, True
        self.puts: Counter[tuple[str, bytes]] = Counter()
        self._lock = threading.Lock()

    def put(self, source: Path, relative: str) -> None:
        with self._lock:
            fault = self.fault_of(relative)
        if fault == "before":
            raise ConnectionError("reset by peer")
        if fault == "forbidden":
            raise PermissionError("no")
        content = source.read_bytes()
        with self._lock:
            self.puts[relative, content] += fault != "after"
        write_atomically(self.folder / relative, content)
        if fault == "after":
            raise ConnectionError("the answer was lost")

    def sizes(self) -> dict[str, int] | None:
        return {name: len(content) for name, content in contents(self.folder).items()} if self.lists else None

    def error(self, fault: BaseException) -> str:
        return f"{type(fault).__name__}: {fault}"


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".tmp"))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def is_putting() -> bool:
    return any(thread.name == "evenload-put" for thread in threading.enumerate())


def sums(files: dict[str, bytes]) -> str:
    return "".join(f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in sorted(files))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with a few files."""
    for number in range(6):
        write_atomically(tmp_path / "run" / f"outputs/draw/{number}.txt", b"x" * number)
    write_atomically(tmp_path / "run" / "outputs/score/0.npy", b"score")
    write_atomically(tmp_path / "run" / "results.jsonl", b"{}\n")
    write_atomically(tmp_path / "run" / "journal/segment-0", b"ours")
    write_atomically(tmp_path / "run" / "journal/lock", b"")
    write_atomically(tmp_path / "run" / "outputs/draw/7.txt.11.tmp", b"half")
    return tmp_path / "run"


def expected(run: Path) -> dict[str, bytes]:
    files = contents(run)
    return {name: files[name] for name in files if name.startswith("outputs/") or name == "results.jsonl"}


def copied(store: FaultyStore, run: Path, to: Destination = TO) -> UploadOutcome:
    with Uploads(store, run, to, ONCE) as uploads:
        return uploads.finish()


@pytest.mark.parametrize("seed", range(6))
def test_any_run_of_faults_kills_and_changes_ends_with_whole_copies(
    run: Path, tmp_path: Path, seed: int, until: Callable[[Callable[[], object], str], None]
) -> None:
    chance = random.Random(seed)
    store = FaultyStore(
        tmp_path / "far", lambda path: chance.choice(("", "", "", "before", "after", "forbidden"))
    )
    store.lists = chance.random() < 0.5
    for _ in range(4):
        with Uploads(store, run, TO, ONCE) as uploads:
            for _ in range(chance.randrange(12)):
                path = f"outputs/draw/{chance.randrange(9)}.txt"
                if chance.random() < 0.6:
                    # Few contents: a file comes back to what the store once had.
                    write_atomically(run / path, bytes(chance.randrange(3)))
                uploads.offer(path)
            if chance.random() < 0.5:
                uploads.finish()
        until(lambda: not is_putting(), "what an ended program was putting is there or not")
    store.fault_of = lambda path: ""
    before = store.puts.copy()
    outcome = copied(store, run)
    files = expected(run)
    assert (outcome.n_left, outcome.n_files, outcome.why) == (0, len(files), "")
    far = contents(tmp_path / "far")
    names = far.pop("SHA256SUMS").decode()
    assert far == files
    assert "".join(sorted(names.splitlines(keepends=True), key=lambda line: line[66:])) == sums(files)
    now = Counter({key: n for key, n in store.puts.items() if key[0] != "SHA256SUMS"})
    assert max(n for (path, _), n in (now - before).items()) == 1 if now - before else True
    again = copied(store, run)
    assert (again.n_new, again.n_left) == (0, 0)
    assert Counter({key: n for key, n in store.puts.items() if key[0] != "SHA256SUMS"}) == now


def test_nothing_that_is_there_is_put_again(run: Path, tmp_path: Path) -> None:
    store = FaultyStore(tmp_path / "far")
    for _ in range(3):
        assert copied(store, run).n_left == 0
        shutil.copytree(run, tmp_path / "moved")  # other inodes and times, the same bytes
        shutil.rmtree(run)
        (tmp_path / "moved").rename(run)
    assert set(store.puts.values()) == {1}


def test_only_the_stages_that_were_asked_for_and_no_links(run: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("mine")
    (run / "outputs/score/link.txt").symlink_to(tmp_path / "secret")
    (run / "summary.json").symlink_to(tmp_path / "secret")
    store = FaultyStore(tmp_path / "far")
    with Uploads(store, run, Destination(TO.url, ("score",)), ONCE) as uploads:
        uploads.offer("outputs/draw/1.txt")
        assert uploads.finish().n_files == 2
    assert contents(tmp_path / "far").keys() == {"outputs/score/0.npy", "results.jsonl", "SHA256SUMS"}
    assert copied(store, run).n_files == 8


def test_a_store_that_is_down_is_told_once_and_holds_nobody_up(run: Path, tmp_path: Path) -> None:
    store, told = FaultyStore(tmp_path / "far", lambda path: "before"), []
    with Uploads(store, run, TO, ONCE, clock=lambda: 0.0) as uploads:
        uploads.tell = told.append
        for _ in range(5):
            outcome = uploads.finish()
            assert (outcome.n_files, outcome.n_left, outcome.why) == (0, 8, "ConnectionError: reset by peer")
        assert len(told) == 5, "once in each try of the whole"
        store.fault_of = lambda path: ""
        outcome = uploads.finish()
        assert (outcome.n_files, outcome.n_left, outcome.why) == (8, 0, "")


def test_a_store_that_hangs_is_left_behind(run: Path, tmp_path: Path) -> None:
    """Time stands still until it hangs, and then more of it is gone than a file may take."""
    hangs, is_over = threading.Event(), threading.Event()
    for path in (*(run / "outputs").rglob("*"), run / "results.jsonl"):
        if path.is_file() and path.name != "5.txt":
            path.unlink()

    def hang(path: str) -> str:
        hangs.set()
        is_over.wait(500)
        return ""

    store = FaultyStore(tmp_path / "far", hang)
    limits = SendLimits(timeout_s=900, retries=3)
    with Uploads(store, run, TO, limits, clock=lambda: 1000.0 if hangs.is_set() else 0.0) as uploads:
        outcome = uploads.finish()
    is_over.set()
    assert (outcome.n_left, outcome.why) == (1, "TimeoutError: a file took longer than 900 s")


def test_ctrl_c_leaves_the_rest_with_the_command_that_copies_it(run: Path, tmp_path: Path) -> None:
    is_over = threading.Event()
    store = FaultyStore(tmp_path / "far", lambda path: "" if is_over.wait(500) else "before")

    def interrupt(n_left: int, n_files: int) -> None:
        raise KeyboardInterrupt

    with Uploads(store, run, TO, ONCE) as uploads:
        outcome, said = finish_uploads(uploads, Interrupts(), waits=True, watch=interrupt)
        is_over.set()
    assert outcome is not None
    assert (outcome.n_left, len(said)) == (8, 1)
    assert f"evenload upload {run}" in said[0]
    assert "ended" in said[0]


def test_a_record_that_was_cut_or_damaged_is_believed_as_far_as_it_goes(run: Path, tmp_path: Path) -> None:
    store = FaultyStore(tmp_path / "far")
    store.lists = False
    copied(store, run)
    rows = (run / RECORD).read_bytes()
    for text in (rows[: len(rows) // 2], rows[:-3], b"", b"[" * 100_000, b"null\n" + rows, b"\xff\xfe"):
        (run / RECORD).write_bytes(text)
        assert copied(store, run).n_left == 0
    assert last_destination(run) == TO
    (run / RECORD).write_text('{"schema": 1, "to": "s3://bucket/run", "stages": null}\n{"path": 7}\n[]\n')
    with Uploads(store, run, TO, ONCE) as uploads:
        assert uploads.outcome().n_files == 0
    os.chmod(run / RECORD, 0o666)
    with pytest.raises(ConfigError, match="open to others"):
        upload_run(run)


@pytest.mark.parametrize(
    ("to", "said"),
    [
        (None, "copied nowhere yet"),
        ("/somewhere", "no address that results can be copied to"),
        ("s3://", "no address of a folder"),
        ("s3://bucket/../other", "no address of a folder"),
        ("https://me:secretpass@host/x", "holds a name or password"),
        ("https://host/x?token=abcdefgh", r"token=\*\*\*.*no address of a folder"),
        ("zip://a::s3://b", "no address that results can be copied to"),
    ],
)
def test_addresses_that_nothing_can_be_copied_to(run: Path, to: str | None, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        upload_run(run, to)
    assert "secretpass" not in str(refused.value)
    assert "abcdefgh" not in str(refused.value)
    with pytest.raises(ConfigError, match="not the folder of a run"):
        upload_run(run / "outputs", to)
