"""What of a script's own pools is taken over, when it imports them; what is not is left, and remembered.

Nothing is imported that the script does not import: a hook waits for the modules. A class keeps its name and
its identity; only a new object of it, in the script's own process, is made by ours. Classes that others
derive from it are left as they are.
"""

import importlib
import importlib.abc
import importlib.machinery
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evenload.integrations.script.measured_work import MeasuredWork
    from evenload.integrations.script.team import Team


@dataclass(slots=True)
class ScriptRun:
    """The script that runs.

    pid        of the script's own process: its children keep the originals
    devices    for workers, a device each
    timeout_s  a worker that is at one task longer is killed
    works      what was measured of each pool that was taken over
    left       what was left as it was, and why
    """

    pid: int
    devices: str | None = None
    timeout_s: float | None = None
    works: list["MeasuredWork"] = field(default_factory=list)
    left: Counter[str] = field(default_factory=Counter)


_runs: list[ScriptRun] = []


def install(devices: str | None = None, timeout_s: float | None = None) -> ScriptRun:
    """Have the pools of this process taken over from now on."""
    run = ScriptRun(os.getpid(), devices, timeout_s)
    _runs[:] = [run]
    sys.meta_path.insert(0, _Hook())
    for name, act in ACTS.items():
        if name in sys.modules:
            act(sys.modules[name])
    return run


def is_script() -> bool:
    """Whether this is the process of the script itself, and none that it has started."""
    return bool(_runs) and _runs[0].pid == os.getpid()


def leave(what: str, why: str) -> None:
    """Remember what is left as it was."""
    if is_script():
        _runs[0].left[f"{what}: {why}"] += 1


def new_team(n: int, kind: str, **options: Any) -> "Team":
    """Return a team of ``n`` workers, and remember what it will measure.

    Without devices that somebody named, workers see what they see in the script's own pool. Else each has a
    device to itself, and there are no more workers than devices.
    """
    from evenload.integrations.script.team import Team

    team = Team(_places(n), kind, _runs[0].timeout_s, **options)
    _runs[0].works.append(team.work)
    return team


def _places(n: int) -> Mapping[str, Mapping[str, str]]:
    """Return places for ``n`` workers, each with its environment."""
    devices = _runs[0].devices
    if devices is None:
        return {f"cpu:{place}": {} for place in range(n)}
    from evenload.devices.environment import worker_environment
    from evenload.integrations.worker_count import limited

    pool = limited(devices, n)
    return {device.id: worker_environment(device, pool) for device in pool}


class _Hook(importlib.abc.MetaPathFinder):
    """Finds nothing by itself; has what is found for some names be followed by what is to be done then."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname not in ACTS:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (
            finder.find_spec(fullname, path, target) for finder in others if hasattr(finder, "find_spec")
        )
        spec = next((one for one in found if one is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Then(spec.loader, ACTS[fullname])
        return spec


class _Then(importlib.abc.Loader):
    """A loader that has ``act`` follow what another one loads, and is seen by nobody."""

    def __init__(self, loader: Any, act: Callable[[ModuleType], None]):
        self._loader, self._act = loader, act

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._act(module)


def _take(
    class_name: str, place: str, parts: tuple[str, ...], is_ours: str = ""
) -> Callable[[ModuleType], None]:
    """Return what has new objects of a module's class be made by ours, which is at ``place``.

    parts    what ours needs of the original
    is_ours  a class derived from it that is no process pool
    """

    def act(module: ModuleType) -> None:
        original = getattr(module, class_name)
        if any(not hasattr(original, name) for name in parts):
            return leave(f"{module.__name__}.{class_name}", "this Python's is of another make")

        def make(cls: type, *arguments: Any, **named: Any) -> Any:
            if cls is original and is_script():
                where, _, name = place.partition(":")
                cls = getattr(importlib.import_module(f"evenload.integrations.script.{where}"), name)
            elif not (is_ours and issubclass(cls, getattr(module, is_ours))):
                leave(f"{cls.__module__}.{cls.__qualname__}", "a class of its own")
            return object.__new__(cls)

        original.__new__ = make
        return None

    return act


POOL = ("_setup_queues", "_repopulate_pool", "_get_sentinels", "_map_async", "_help_stuff_finish")
EXECUTOR = ("_spawn_process", "_adjust_process_count", "_start_executor_manager_thread")
ACTS: dict[str, Callable[[ModuleType], None]] = {
    "multiprocessing.pool": _take("Pool", "pool:DealtPool", POOL, "ThreadPool"),
    "concurrent.futures.process": _take("ProcessPoolExecutor", "process_executor:DealtExecutor", EXECUTOR),
}
"""What is done when a module has been imported."""
