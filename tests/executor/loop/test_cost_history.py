"""What one program learns of a function, the next one knows; a cache that is lost or damaged harms nobody."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from evenload.balance.policy.estimate import Cost
from evenload.devices import Device
from evenload.errors import ResourceExhausted
from evenload.executor import Executor
from evenload.executor.loop import cost_history as warmth
from evenload.executor.loop.cost_history import CostCache, Learned

CPU = Device("cpu:0", "cpu", "cpu", "a CPU", threads=2)
GPU = Device("cuda:0", "discrete", "cuda", "a GPU", uuid="GPU-1")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("EVENLOAD_WARM_START", "1")
    return tmp_path / "evenload" / "learned.json"


def test_what_is_saved_is_known_by_the_next(tmp_path: Path) -> None:
    one = CostCache(tmp_path / "a" / "learned.json")
    assert one.known("f", "s", [CPU, GPU]) == {}
    one.learn("f", "s", GPU, Learned(Cost(0.1, 0.2), 8))
    one.learn("f", "s", CPU, Learned(None, 4))
    one.save()
    other = CostCache(one.path)
    other.learn("g", "s", GPU, Learned(Cost(1.0, 2.0)))
    other.save()
    two = CostCache(one.path)
    assert two.known("f", "s", [CPU, GPU]) == {
        "cuda:0": Learned(Cost(0.1, 0.2), 8),
        "cpu:0": Learned(None, 4),
    }
    assert two.known("g", "s", [CPU, GPU]) == {"cuda:0": Learned(Cost(1.0, 2.0))}
    assert two.known("f", "other size", [GPU]) == two.known("h", "s", [GPU]) == {}
    same_place = Device("cuda:0", "discrete", "cuda", "a GPU", uuid="GPU-2")
    assert two.known("f", "s", [same_place]) == {}
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["learned.json"]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"entries": 3}', '{"format": 1, "entries": {"k": 3}}', "\0\1"]
)
def test_a_damaged_file_is_an_empty_one(tmp_path: Path, content: str) -> None:
    path = tmp_path / "learned.json"
    path.write_text(content)
    one = CostCache(path)
    assert one.known("f", "s", [GPU]) == {}
    assert (one.damage is None) == ('"k"' in content)
    one.learn("f", "s", GPU, Learned(Cost(0.1, 0.2)))
    one.save()
    assert CostCache(path).known("f", "s", [GPU]) == {"cuda:0": Learned(Cost(0.1, 0.2))}


@pytest.mark.parametrize(
    "entry",
    [3, {}, {"ceiling": 0}, {"ceiling": "x"}, {"ceiling": None, "per_item_s": -1, "launch_s": 0},
     {"ceiling": None, "per_item_s": "fast", "launch_s": 0},
     {"ceiling": None, "per_item_s": 1e300, "launch_s": 0}],
)  # fmt: skip
def test_entries_that_make_no_sense_are_passed_over(tmp_path: Path, entry: Any) -> None:
    one = CostCache(tmp_path / "learned.json")
    one.learn("f", "s", GPU, Learned(Cost(0.1, 0.2)))
    one.save()
    content = json.loads(one.path.read_text())
    content["entries"] = dict.fromkeys(content["entries"], entry)
    one.path.write_text(json.dumps(content))
    assert CostCache(one.path).known("f", "s", [GPU]) == {}


def test_the_file_stays_small_and_a_folder_that_cannot_be_written_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warmth, "MOST_ENTRIES", 10)
    path = tmp_path / "learned.json"
    for n in range(30):
        monkeypatch.setattr(time, "time", lambda n=n: float(n))
        one = CostCache(path)
        one.learn(f"f{n}", "s", GPU, Learned(Cost(0.1, 0.2)))
        one.save()
    assert len(json.loads(path.read_text())["entries"]) == 10
    assert CostCache(path).known("f29", "s", [GPU])
    assert not CostCache(path).known("f3", "s", [GPU])
    no_folder = CostCache(path / "below a file" / "learned.json")
    no_folder.learn("f", "s", GPU, Learned())
    no_folder.save()


PROGRAM = """
import os, sys, time, evenload
from evenload.events import EventLog, Span

class Work:
    def __init__(self, *, device):
        self.nap_s, self.device = 0.008 if device.id == "cpu:0" else 0.1, device.id

    def __call__(self, x):
        open(f"{sys.argv[1]}-{self.device}", "w").close()
        while not all(os.path.exists(f"{sys.argv[1]}-cpu:{n}") for n in range(2)):
            time.sleep(0.005)  # until both have an item
        time.sleep(self.nap_s)
        return x

spans = []
list(evenload.map(Work, range(100), devices="cpu*2", events=EventLog(spans.append)))
whys = [e.why for e in spans if isinstance(e, Span)]
print(sum("nothing is measured yet" in why for why in whys))
"""


def test_the_next_program_knows_the_devices_from_the_start(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)

    n_runs = 0

    def run() -> int:
        nonlocal n_runs
        n_runs += 1
        done = subprocess.run(
            [sys.executable, "program.py", str(n_runs)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            timeout=550,
        )
        assert done.stderr == ""
        return int(done.stdout)

    assert run() == 2
    entries = json.loads(cache.read_text())["entries"]  # on a busy machine, of what was learned of items, too
    entries = {name: entry for name, entry in entries.items() if "per_item_s" in entry}
    assert len(entries) == 2, "each device has its own"
    # A device may seem slower than it is, beside other work, but not quicker.
    assert max(entry["per_item_s"] for entry in entries.values()) >= 0.075
    assert run() == 0
    (tmp_path / "program.py").write_text(PROGRAM.replace("return x", "return -x"))
    assert run() == 2, "another function"
    cache.write_text("nonsense")
    done = subprocess.run(
        [sys.executable, "program.py", "last"], cwd=tmp_path, capture_output=True, text=True, timeout=550
    )
    assert "is damaged, and left out" in done.stderr
    assert (done.returncode, done.stdout) == (0, "2\n")


class Small:
    """A device with room for three items; says how many it was called with at most, in a file."""

    def __init__(self, log: str):
        self.log = log

    def __call__(self, xs: list[int]) -> list[int]:
        with open(self.log, "a") as file:
            file.write(f"{len(xs)}\n")
        if len(xs) > 3:
            raise ResourceExhausted("too many")
        time.sleep(0.01)
        return xs


def test_ceilings_are_remembered_by_new_workers_and_new_programs(cache: Path, tmp_path: Path) -> None:
    fn = Small(str(tmp_path / "log"))

    def called(executor: Executor, n: int) -> list[int]:
        assert list(executor.map(fn, range(n), batch=16)) == list(range(n))
        sizes = [int(line) for line in (tmp_path / "log").read_text().split()]
        (tmp_path / "log").unlink()
        return sizes

    with Executor("cpu*1", echo=False) as executor:
        assert called(executor, 64)[:4] == [16, 8, 4, 2]
        (pid,) = set(executor.map(lambda x: os.getpid(), range(3)))
        os.kill(pid, 9)
        assert max(called(executor, 16)) <= 3, "another worker knows it"
    with Executor("cpu*1", echo=False) as executor:
        sizes = called(executor, 64)
        assert max(sizes) <= 4, "another executor, as another program, knows it"
        assert sum(size > 3 for size in sizes) <= 1, "one more is tried now and then"
