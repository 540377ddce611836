"""CPU slots beside GPUs: each runs its own implementation, and slow ones hold up nobody.

The GPUs here are devices by name only: their workers are told so, and what they run is plain Python.
"""

import itertools
import os
import random
import time
from functools import partial
from typing import Any

import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import evenload
from evenload.balance.fleet import ModelDevice
from evenload.balance.policy.estimate import Cost
from evenload.balance.simulate import simulate
from evenload.devices import CurrentDevice, Device, DevicePool
from evenload.errors import ConfigError, NoUsableDevice
from evenload.events import EventLog, Note
from evenload.executor import Executor
from evenload.same_code import fingerprint_code

GPUS = [Device(f"cuda:{n}", "discrete", "cuda", "a GPU by name", uuid=f"GPU-{n}") for n in range(2)]


def mixed(n_cores: int = 8, n_slots: int = 3) -> DevicePool:
    cpu = Device("cpu:0", "cpu", "cpu", "a CPU", threads=n_cores)
    return DevicePool([*GPUS, cpu], n_cores=n_cores).select(f"cuda:0,1,cpu*{n_slots}")


def on_cpu(x: int) -> tuple[str, str, int]:
    time.sleep(0.02)
    return "cpu", os.environ.get("EVENLOAD_DEVICE", "inline"), x


class OnGpu:
    def __init__(self, factor: int = 1, *, device: CurrentDevice):
        assert device.family == "cuda"
        self.factor, self.device = factor, device.id

    def __call__(self, x: int) -> tuple[str, str, int]:
        time.sleep(0.002)
        return "gpu", self.device, self.factor * x


@pytest.mark.parametrize("backend", ["process", "inline"])
def test_each_device_runs_its_own(backend: str) -> None:
    task = evenload.Task(cpu=on_cpu, gpu=partial(OnGpu, 10))
    with Executor(mixed(), backend=backend) as executor:
        results = executor.map(task, itertools.count(), policy="pull")
        seen: set[str] = set()
        for x, (kind, device, result) in enumerate(results):
            if backend == "process":
                assert kind == ("gpu" if device.startswith("cuda") else "cpu")
            assert result == (10 * x if kind == "gpu" else x)
            seen.add(kind)
            if x >= 100 and seen == {"cpu", "gpu"}:
                break


def test_a_device_without_an_implementation_takes_no_part() -> None:
    events: list[Any] = []
    got = evenload.map(
        evenload.Task(gpu=OnGpu), range(20), devices=mixed(), events=EventLog(events.append), echo=False
    )
    assert {kind for kind, _, _ in got} == {"gpu"}
    notes = [e.text for e in events if isinstance(e, Note) and e.level == "warning"]
    assert any("has no implementation for cpu:0" in text for text in notes)
    with pytest.raises(NoUsableDevice, match="has no implementation for cpu:0"):
        list(evenload.map(evenload.Task(gpu=OnGpu), range(20), devices="cpu*1", echo=False))


@pytest.mark.parametrize("wrong", [{}, {"cpu": 3}, {"cpu": abs, "gpu": "fast"}])
def test_what_is_no_task_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        evenload.Task(**wrong)


def test_both_implementations_count_for_the_fingerprint() -> None:
    prints = {
        fingerprint_code(evenload.Task(cpu=a, gpu=b)) for a in (on_cpu, abs) for b in (OnGpu, len, None)
    }
    assert len(prints) == 6


def test_a_worker_imports_its_own_implementation_only() -> None:
    class Poison:
        def __call__(self, x: int) -> int:
            return x

        def __reduce__(self) -> Any:
            return exec, ("raise RuntimeError('imported on the wrong device')",)

    task = evenload.Task(cpu=lambda x: -x, gpu=Poison())
    assert list(evenload.map(task, range(20), devices="cpu*2", echo=False)) == [-x for x in range(20)]


# --- the same in simulated time -----------------------------------------------------------------------


def fleets(slowness: float, n_gpus: int = 2, n_slots: int = 4) -> tuple[list[ModelDevice], list[ModelDevice]]:
    gpus = [ModelDevice(f"gpu{n}", 1.0, launch_s=1e-3) for n in range(n_gpus)]
    return gpus, [ModelDevice(f"cpu{n}", 1.0 / slowness, launch_s=1e-3) for n in range(n_slots)]


def makespans(
    slowness: float, n_items: int, seed: int, is_known: bool, **options: Any
) -> tuple[float, float]:
    """With the GPUs alone, and with CPU slots beside them."""
    gpus, slots = fleets(slowness)
    dice = random.Random(seed)
    costs = [dice.lognormvariate(0.0, 0.5) for _ in range(n_items)]
    history = {d.name: Cost(1e-3, 1.0 / d.speed) for d in (*gpus, *slots)} if is_known else None
    alone = simulate("measured", gpus, costs, **options)
    both = simulate(
        "measured", gpus + slots, costs, helpers=[d.name for d in slots], history=history, **options
    )
    assert both.n_unfinished == 0
    return alone.makespan_s, both.makespan_s


@settings(max_examples=examples(60), deadline=None)
@given(
    st.sampled_from([2.0, 8.0, 30.0, 100.0, 1000.0]), st.integers(1, 200), st.integers(0, 9), st.booleans()
)
def test_cpu_slots_never_cost_more_than_a_moment(
    slowness: float, n_items: int, seed: int, is_known: bool
) -> None:
    alone, both = makespans(slowness, n_items, seed, is_known)
    assert both <= 1.1 * alone + 2.5, "an item or two run again by a GPU, at worst"
