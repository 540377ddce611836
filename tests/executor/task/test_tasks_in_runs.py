"""Tests tasks through the executor as a whole, the same on every backend: failures, classes, retries."""

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from evenload.errors import ConfigError, NoUsableDevice, TaskError
from evenload.events import EventLog, Note
from evenload.executor import Executor


def fail_on_multiples_of_three(x: int) -> int:
    if x % 3 == 0:
        raise ValueError(f"{x} is a multiple of three")
    return x


# --- failures of items ----------------------------------------------------------------------------


def test_a_failed_item_raises_in_its_turn(executor: Executor) -> None:
    results = executor.map(fail_on_multiples_of_three, [1, 2, 3, 4])
    assert (next(results), next(results)) == (1, 2)
    with pytest.raises(TaskError, match="item 2 raised ValueError: 3 is a multiple") as caught:
        next(results)
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.index == 2
    assert "fail_on_multiples_of_three" in caught.value.remote_traceback
    with pytest.raises(StopIteration):
        next(results)


def test_a_batch_that_may_not_run_twice_fails_as_a_whole(executor: Executor) -> None:
    def fn(xs: list[int]) -> list[int]:
        return [fail_on_multiples_of_three(x) for x in xs]

    got = list(executor.map(fn, [1, 2, 3, 4, 5], batch=4, repeatable=False, on_error="return"))
    assert [isinstance(x, TaskError) for x in got] == [True] * 4 + [False]


# --- classes --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("patient")
def test_constructors_and_close_run_once_per_worker_and_instances_stay_warm(
    backend: str, tmp_path: Any
) -> None:
    class Counted:
        def __init__(self, folder: str = str(tmp_path)):
            self.folder = folder
            self.log("built")

        def log(self, what: str) -> None:
            with open(os.path.join(self.folder, what), "a") as file:
                file.write("x")

        def __call__(self, x: int) -> int:
            return x

        def close(self) -> None:
            self.log("closed")

    with Executor("cpu*1", backend=backend) as executor:
        for _ in range(3):
            assert list(executor.map(Counted, range(4))) == [0, 1, 2, 3]
        assert (tmp_path / "built").read_text() == "x"
        assert not (tmp_path / "closed").exists()
    assert (tmp_path / "closed").read_text() == "x"


def test_a_device_whose_constructor_fails_is_left_out(backend: str, tmp_path: Any) -> None:
    class Picky:
        def __init__(self, refused: str = str(tmp_path / "refused"), *, device: Any):
            if device.id == "cpu:0":
                open(refused, "w").close()
                raise RuntimeError("not on this one")
            while not os.path.exists(refused):
                time.sleep(0.01)
            self.device = device.id

        def __call__(self, x: int) -> str:
            return self.device

    events: list[Any] = []

    def until_warned() -> Iterator[int]:
        yield 0
        while not any(isinstance(e, Note) and e.level == "warning" for e in tuple(events)):
            time.sleep(0.005)
            yield 0

    with Executor("cpu*2", backend=backend, events=EventLog(events.append), echo=False) as executor:
        got = list(executor.map(Picky, until_warned()))
        assert set(got) == {"cpu:1"}
        assert list(executor.map(abs, range(5))) == list(range(5)), "the device is fine for others"
    notes = [e.text for e in events if isinstance(e, Note) and e.level == "warning"]
    assert any("cpu:0" in text and "not on this one" in text for text in notes)


def test_if_every_constructor_fails_each_cause_is_told(executor: Executor) -> None:
    class Broken:
        def __init__(self, device: Any):
            raise RuntimeError(f"no room on {device.id}")

        def __call__(self, x: int) -> int:
            return x

    with pytest.raises(NoUsableDevice, match="no device can run") as caught:
        list(executor.map(Broken, range(5)))
    assert {device: "no room" in why for device, why in caught.value.causes.items()} == {
        "cpu:0": True,
        "cpu:1": True,
    }
    assert caught.value.exit_code == 3


# --- what is refused ------------------------------------------------------------------------------


def test_what_raises_may_be_tried_again(executor: Executor, tmp_path: Any) -> None:
    def shaky(x: int, folder: str = str(tmp_path)) -> int:
        n = len([name for name in os.listdir(folder) if name.startswith(f"{x}-")])
        open(f"{folder}/{x}-{n}", "w").close()
        if n < x % 3:
            raise ConnectionError(f"attempt {n}")
        return x

    results = executor.map(shaky, range(9), retries=1, on_error="return", policy="pull")  # no copies
    got = list(results)
    assert [x for x in range(9) if isinstance(got[x], TaskError)] == [2, 5, 8]
    assert [got[x] for x in range(9) if x % 3 < 2] == [x for x in range(9) if x % 3 < 2]
    assert "attempt 1" in got[2].message
    assert results.summary is not None
    assert results.summary.retries == {"raised": 6}
    with pytest.raises(ConfigError, match="repeatable=False forbids"):
        executor.map(abs, [1], retries=1, repeatable=False)
    with pytest.raises(ConfigError, match="retries is -1"):
        executor.map(abs, [1], retries=-1)
