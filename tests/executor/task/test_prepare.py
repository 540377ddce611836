"""What may be handed over as a function, and how it gets to a worker."""

import functools
import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from evenload.errors import ConfigError
from evenload.executor.task.prepare import Tasks, pickle_callable
from evenload.executor.task.task import PreparedTask


class Model:
    def __init__(self, weights: str = "w", *, device: Any = None):
        self.weights = weights

    def __call__(self, x: int) -> int:
        return x


class Needy:
    def __init__(self, weights: str, scale: float):
        pass

    def __call__(self, x: int) -> int:
        return x


class OneArgument:
    def __init__(self, where: Any):
        pass

    def __call__(self, x: int) -> int:
        return x


def in_a_fresh_interpreter(pickled: tuple[bytes, list], argument: str, tmp_path: Path) -> str:
    (tmp_path / "fn").write_bytes(pickled[0])
    code = f"import pickle; print(pickle.load(open('fn', 'rb'))({argument}))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=550
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def offset(x: int) -> int:
    return x + OFFSET


OFFSET = 40


def test_functions_of_modules_that_nobody_else_can_import_go_by_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This very module: the test runner has made it from a file outside ``sys.path``, unless it was started as
    # ``python -m pytest``, in the folder of which ``tests`` could be imported.
    root = Path(__file__).parents[3]
    monkeypatch.setattr(sys, "path", [one for one in sys.path if Path(one).resolve() != root])
    assert in_a_fresh_interpreter(pickle_callable(offset), "2", tmp_path) == "42"
    assert in_a_fresh_interpreter(pickle_callable(functools.partial(offset)), "2", tmp_path) == "42"
    assert in_a_fresh_interpreter(pickle_callable(lambda x: offset(x) + 1), "1", tmp_path) == "42"


def test_what_cannot_be_sent_says_what_to_do() -> None:
    lock = threading.Lock()
    with pytest.raises(ConfigError, match=r"cannot be sent to a worker.*lock") as caught:
        Tasks().prepare(lambda x: lock)
    assert "inline" in (caught.value.hint or "")
    assert Tasks().prepare(lambda x: lock, sends=False).fn(1) is lock


@pytest.mark.parametrize(
    ("fn", "words"), [(3, "cannot be called"), ("name", "cannot be called"), (Needy, "needs weights, scale")]
)
def test_what_cannot_be_run_is_refused(fn: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Tasks().prepare(fn)


def test_coroutine_functions_and_odd_batches_are_refused() -> None:
    async def later(x: int) -> int:
        return x

    with pytest.raises(ConfigError, match="coroutine"):
        Tasks().prepare(later)
    for batch in (0, -1, 2.5):
        with pytest.raises(ConfigError, match="batch"):
            Tasks().prepare(len, batch=batch)  # type: ignore[arg-type]


def test_how_the_constructor_takes_the_device() -> None:
    prepare = Tasks().prepare
    assert prepare(Model).device_as == "device"
    assert prepare(functools.partial(Model, device="mine")).device_as is None
    assert prepare(OneArgument).device_as == ""
    assert prepare(functools.partial(Needy, "w", 2.0)).device_as is None
    assert prepare(functools.partial(Needy, "w")).device_as == ""


def test_the_same_function_is_the_same_task() -> None:
    tasks = Tasks()
    first = tasks.prepare(offset)
    assert tasks.prepare(offset) is first
    partial = functools.partial(offset, 1)
    assert tasks.prepare(partial) is tasks.prepare(partial) is tasks.prepare(functools.partial(offset, 1))
    assert tasks.prepare(offset, batch=2) is not first
    assert tasks.prepare(len).id != first.id
    for number in range(300):
        tasks.prepare(functools.partial(offset, number))
    assert len(tasks._tasks) <= 256


@pytest.mark.usefixtures("eager_switches")
def test_threads_that_prepare_tasks_at_once_get_what_one_thread_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each function has one number, and this module, which no worker can import, is never sent by name."""
    root = Path(__file__).parents[3]
    monkeypatch.setattr(sys, "path", [one for one in sys.path if Path(one).resolve() != root])
    functions = [functools.partial(offset, number) for number in range(20)]
    expected = [pickle_callable(fn) for fn in functions]
    tasks = Tasks()

    def prepare_all(seed: int) -> list[tuple[int, PreparedTask]]:
        order = random.Random(seed).sample(range(20), 20) * 3
        return [(number, tasks.prepare(functions[number])) for number in order]

    with ThreadPoolExecutor(4) as threads:
        prepared = [one for many in threads.map(prepare_all, range(4)) for one in many]
    assert all(task.pickled == expected[number] for number, task in prepared)
    assert (
        len({(number, task.id) for number, task in prepared}) == len({task.id for _, task in prepared}) == 20
    )
