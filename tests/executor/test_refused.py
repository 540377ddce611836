"""Tests what an executor refuses, the same on every backend."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import evenload
from evenload.balance.migrate import LoadBalancer
from evenload.errors import ConfigError, ResultNotSendable, UnknownName
from evenload.executor import Executor

# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"policy": "mesured"}, UnknownName, "measured"),
        ({"on_error": "ignore"}, ConfigError, "on_error"),
        ({"timeout_s": 0}, ConfigError, "timeout_s"),
        ({"look_ahead": 0}, ConfigError, "look_ahead"),
        ({"batch": 0}, ConfigError, "batch"),
        ({"balancer": LoadBalancer()}, ConfigError, "static"),
        ({"cost": [1.0]}, ConfigError, "size hints"),
    ],
)
def test_nonsense_is_refused_at_once(
    executor: Executor, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        executor.map(abs, [1, 2], **options)


def test_unknown_devices_and_backends_are_refused(backend: str) -> None:
    with pytest.raises(UnknownName, match="proces"):
        Executor("cpu", backend="proces")
    with pytest.raises(UnknownName):
        Executor("cpux", backend=backend)
    with pytest.raises(ConfigError):
        Executor([], backend=backend)
    with pytest.raises(ConfigError, match="max_worker_deaths"):
        Executor("cpu", backend=backend, max_worker_deaths=0)


def test_a_bad_size_hint_ends_its_run_after_what_came_before_it(executor: Executor) -> None:
    other = executor.map(abs, range(20))
    assert next(other) == 0
    with pytest.raises(ConfigError, match="size hint of item 1"):
        executor.map(abs, [1, 2], cost=[1, -2])
    results = executor.map(abs, iter(range(3)), cost=lambda x: float("nan") if x == 2 else 1.0)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ConfigError, match="size hint of item 2"):
        next(results)
    assert list(other) == list(range(1, 20))


# --- what belongs to the program, and what does not -----------------------------------------------


def test_what_belongs_to_the_program_is_named_when_a_task_uses_it() -> None:
    """The oracle is the reader: the error has the variable's name, what it is, and what to do instead."""
    with Executor("cpu*1", echo=False) as executor:
        results, future, lock = executor.map(abs, [1]), executor.submit(abs, 1), threading.Lock()
        for name, task in (
            ("executor", lambda x: executor.devices),
            ("results", lambda x: list(results)),
            ("future", lambda x: future.result()),
        ):
            with pytest.raises(
                ConfigError, match=f"it uses '{name}', .* cannot leave this program .*"
            ) as caught:
                executor.map(task, [1])
            assert "lock" not in str(caught.value).split("hint")[0]
        with pytest.raises(ConfigError, match="it uses 'lock'"):
            executor.submit(lambda: lock)
        with pytest.raises(ResultNotSendable, match="an Executor cannot leave this program"):
            list(executor.map(id, [executor]))
        assert list(results) == [1]


def test_two_threads_that_read_one_map_are_told() -> None:
    """One of them gets all results, the other a sentence; which one, chance decides."""
    began, go_on = threading.Event(), threading.Event()

    def slowly() -> Iterator[int]:
        yield 0
        began.set()
        assert go_on.wait(100)
        yield 1

    with Executor("cpu*1", echo=False) as executor, ThreadPoolExecutor(1) as threads:
        results = executor.map(abs, slowly())
        reader = threads.submit(lambda: list(results))
        assert began.wait(100)
        for read in (results.__next__, results.close, lambda: next(results.indexed())):
            with pytest.raises(ConfigError, match="read by another thread"):
                read()
        go_on.set()
        assert reader.result(timeout=100) == [0, 1]


def test_a_named_tuple_that_no_worker_can_import_travels() -> None:
    """The oracle is the plain loop."""

    class Named(NamedTuple):
        number: int

        def doubled(self) -> int:
            return 2 * self.number

    def task(named: Any) -> int:
        return named.doubled() + Named(1).number

    items = [Named(1), Named(2)]
    assert list(evenload.map(task, items, devices="cpu*1")) == list(map(task, items))


def test_objects_of_classes_with_slots_come_back_whatever_their_class() -> None:
    """The oracle is the class itself, which no worker can import: what comes back has its type and values."""

    class Plain:
        __slots__ = ("a", "b")

    class Derived(Plain):
        __slots__ = "c"

    class Open(Plain):
        __slots__ = ("__dict__", "__weakref__")

    @dataclass(slots=True)
    class Record:
        a: int

    @dataclass(frozen=True, slots=True)
    class Frozen:
        a: int

    def make(number: int) -> list[Any]:
        made = [Plain(), Derived(), Open(), Record(number), Frozen(number)]
        for one in made[:3]:
            one.a = number
        made[1].c, made[2].free = "c", "free"
        return made

    with Executor("cpu*1", echo=False) as executor:
        (there,) = executor.map(make, [7])
        (back,) = executor.map(lambda made: made, [there])
    for made in (there, back):
        assert [type(one) for one in made] == [Plain, Derived, Open, Record, Frozen]
        assert [one.a for one in made] == [7] * 5
        assert (made[1].c, made[2].free, hasattr(made[0], "b")) == ("c", "free", False)


IN_A_GONE_FOLDER = """
import os
os.rmdir(os.getcwd())
import evenload
def found(_):
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "gone"
for start in ("auto", "spawn"):
    print(list(evenload.map(found, [0], devices="cpu*1", start=start)))
try:
    list(evenload.map(abs, [0], devices="cpu*1", journal="journal"))
except evenload.EvenloadError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems keep a folder that is used")
def test_in_a_folder_that_was_deleted_workers_find_what_the_program_finds(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", IN_A_GONE_FOLDER], cwd=folder, capture_output=True, text=True, timeout=300
    )
    first, second, *said = done.stdout.splitlines()
    assert (first, second) == ("['gone']", "['gone']"), done.stderr
    assert "the folder in which this program runs was deleted" in " ".join(said)


def rows() -> Iterator[int]:
    yield 1
    try:
        int("one")
    except ValueError as error:
        raise ValueError("row 2 is no number") from error


@pytest.mark.parametrize("backend", ["inline", "process"])
def test_an_error_of_the_items_comes_with_its_cause(backend: str) -> None:
    """The oracle is the plain loop over the same items."""
    with pytest.raises(ValueError, match="row 2") as theirs:
        list(map(abs, rows()))
    with pytest.raises(ValueError, match="row 2") as ours:
        list(evenload.map(abs, rows(), devices="cpu*1", backend=backend))
    assert repr(ours.value.__cause__) == repr(theirs.value.__cause__)
    assert repr(ours.value.__cause__).startswith("ValueError(")
