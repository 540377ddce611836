"""A task knows its device, whichever way it is run."""

import subprocess
import sys
import threading

import pytest

import evenload
from evenload.devices import DevicePool


def name_of_mine(_=None):
    here = evenload.current_device()
    return None if here is None else here.id


def names_of_threads_and_programs(_):
    """Of a thread that the task starts, and of a program."""
    found = []
    thread = threading.Thread(target=lambda: found.append(name_of_mine()))
    thread.start()
    thread.join(500)
    code = "import evenload; print(evenload.current_device().id)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=500)
    found.append(done.stdout.strip())
    return found


class Holder:
    """A model, built for its device."""

    def __init__(self):
        self.built_on = name_of_mine()

    def __call__(self, item):
        return self.built_on, name_of_mine()


def test_outside_of_a_task_there_is_none(monkeypatch):
    monkeypatch.delenv("EVENLOAD_DEVICE", raising=False)
    assert evenload.current_device() is None


@pytest.mark.parametrize("backend", ["inline", "process"])
def test_a_task_knows_the_device_that_its_results_are_said_to_be_of(backend):
    devices = DevicePool.discover().select("cpu*2")
    with evenload.Executor(devices, backend=backend) as executor:
        blocks = list(executor.map(name_of_mine, range(20)).blocks())
        assert {block.device for block in blocks} <= set(devices.ids)
        assert all(set(block.values) == {block.device} for block in blocks)
        assert all(a == b for a, b in executor.map(Holder, range(4)))
        assert executor.submit(name_of_mine).result(100) in devices.ids
    assert name_of_mine() is None


def test_what_a_task_starts_is_on_its_device():
    ((thread, program),) = evenload.map(names_of_threads_and_programs, [0], devices="cpu*1")
    assert thread == program == "cpu:0"
