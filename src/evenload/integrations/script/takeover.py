"""What of a script's own pools is taken over, when it imports them; what is not is left, and remembered.

Nothing is imported that the script does not import: a hook waits for the modules. A class keeps its name and
its identity; only a new object of it, in the script's own process, is made by ours. Classes that others
derive from it are left as they are.
"""

import contextlib
import importlib
import importlib.machinery
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from evenload.integrations.script.measured_work import MeasuredWork
    from evenload.integrations.script.script_page import ScriptPage
    from evenload.integrations.script.team import Team


@dataclass(slots=True)
class ScriptRun:
    """The script that runs.

    pid        of the script's own process: its children keep the originals
    devices    for workers, a device each
    timeout_s  a worker that is at one task longer is killed
    notes      a file for what workers of pools that are left as they are note
    page       a live page
    path       of imports, before the script's own folder stood in front of it
    works      what was measured of each pool that was taken over
    left       what was left as it was, and why
    """

    pid: int
    devices: str | None = None
    timeout_s: float | None = None
    notes: str = ""
    page: "ScriptPage | None" = None
    path: list[str] = field(default_factory=lambda: [*sys.path])
    works: list["MeasuredWork"] = field(default_factory=list)
    left: Counter[str] = field(default_factory=Counter)


_runs: list[ScriptRun] = []


def install(
    devices: str | None = None,
    timeout_s: float | None = None,
    notes: str = "",
    page: "ScriptPage | None" = None,
) -> ScriptRun:
    """Have the pools of this process taken over from now on; with ``notes``, a file, only observed."""
    run = ScriptRun(os.getpid(), devices, timeout_s, notes, page)
    _runs[:] = [run]
    sys.meta_path.insert(0, _Hook())
    for name in (*TAKEN, *LEFT, *LOKY):
        if name in sys.modules:
            _act(sys.modules[name])
    return run


def is_script() -> bool:
    """Whether this is the process of the script itself, and none that it has started."""
    return bool(_runs) and _runs[0].pid == os.getpid()


@contextlib.contextmanager
def own_imports() -> Iterator[None]:
    """Inside the block, imports do not find what the script has beside it, such as a ``json.py``."""
    path, sys.path[:] = sys.path[:], _runs[0].path
    try:
        yield
    finally:
        sys.path[:] = path


def leave(what: str, why: str) -> None:
    """Remember what is left as it was."""
    if is_script():
        _runs[0].left[f"{what}: {why}"] += 1


def new_team(n: int, kind: str, **options: Any) -> "Team":
    """Return a team of ``n`` workers, and remember what it will measure.

    Without devices that somebody named, workers see what they see in the script's own pool. Else each has a
    device to itself, and there are no more workers than devices.
    """
    with own_imports():
        from evenload.integrations.script.team import Team

    places, page = _places(n), _runs[0].page
    events = page.join(places) if page is not None else None
    team = Team(places, kind, _runs[0].timeout_s, events=events, **options)
    _runs[0].works.append(team.work)
    return team


def resize_team(team: "Team", n: int) -> int:
    """Have a team have ``n`` workers, or as many as there are devices. Returns how many that are."""
    before = team.work
    team.resize(_places(n))
    if team.work is not before:
        _runs[0].works.append(team.work)
    return len(team.work.slots)


def _places(n: int) -> Mapping[str, Mapping[str, str]]:
    """Return places for ``n`` workers, each with its environment."""
    devices = _runs[0].devices
    if devices is None:
        return {f"cpu:{place}": {} for place in range(n)}
    with own_imports():
        from evenload.devices.environment import worker_environment
        from evenload.integrations.worker_count import limited

    pool = limited(devices, n)
    return {device.id: worker_environment(device, pool) for device in pool}


class _Hook:  # no importlib.abc: what that imports takes longer than all the rest here
    """Finds nothing by itself; has what is found for some names be followed by what is to be done then."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname not in (*TAKEN, *LEFT, *LOKY):
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (
            finder.find_spec(fullname, path, target) for finder in others if hasattr(finder, "find_spec")
        )
        spec = next((one for one in found if one is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Then(spec.loader)  # pyrefly: ignore
        return spec


class _Then:
    """A loader that has a module that another one loads taken over, and is seen by nobody."""

    def __init__(self, loader: Any):
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        _act(module)


class _Taken(NamedTuple):
    """A class that is taken over: its name, ours, what ours needs of it, and the loop of its workers."""

    name: str
    ours: str
    parts: tuple[str, ...]
    loop: str


TAKEN = {
    "multiprocessing.pool": _Taken(
        "Pool",
        "pool:DealtPool",
        ("_setup_queues", "_repopulate_pool", "_get_sentinels", "_map_async", "_help_stuff_finish"),
        "worker",
    ),
    "concurrent.futures.process": _Taken(
        "ProcessPoolExecutor",
        "process_executor:DealtExecutor",
        ("_spawn_process", "_adjust_process_count", "_start_executor_manager_thread"),
        "_process_worker",
    ),
}
"""What is taken over when a module has been imported."""
LEFT = {
    "multiprocess.pool": (
        "Pool.__init__",
        "multiprocess.Pool, as Dataset.map(num_proc=) of datasets has it",
        "a shard is one call, in which the function may remember rows; how-to/datasets has another map",
    ),
    "sentence_transformers.base.model": (
        "BaseModel.start_multi_process_pool",
        "start_multi_process_pool of sentence-transformers",
        "it deals chunks to who is free, and smaller ones would have other roundings",
    ),
    "accelerate.state": (
        "PartialState.split_between_processes",
        "split_between_processes of accelerate",
        "each process runs the whole script, with its part; coming-from/accelerate deals by speed",
    ),
    "torch.distributed.launcher.api": (
        "elastic_launch.__init__",
        "accelerate launch or torchrun",
        "each process that it starts runs the whole script; coming-from/accelerate deals by speed",
    ),
    "openai.resources.chat.completions.completions": (
        "Completions.create",
        "calls of an OpenAI client",
        "the script asks the server itself; how-to/ask-a-server has several asked by their speed",
    ),
}
"""What is left, and named if it is used: a method of a module's class, what it is to a reader, and why."""
LOKY = {
    "joblib.externals.loky.process_executor": "take_over",
    "loky.process_executor": "take_over",
    "joblib._parallel_backends": "smaller_batches",
}
"""What of ``loky_executor`` is called when a module has been imported."""


def _act(module: ModuleType) -> None:
    """Have new objects of the module's class be made by ours; or have its workers observed."""
    if module.__name__ in LEFT:
        return _note_uses(module, *LEFT[module.__name__])
    if module.__name__ in LOKY:
        return _take_loky(module, LOKY[module.__name__])
    name, ours, parts, loop = TAKEN[module.__name__]
    original = getattr(module, name)
    if any(not hasattr(original, part) for part in parts):
        return leave(f"{module.__name__}.{name}", "this Python's is of another make")
    if _runs[0].notes:
        from evenload.integrations.script.observe import observe

        return observe(_runs[0].notes, loop, module)

    def make(cls: type, *arguments: Any, **named: Any) -> Any:
        if cls is original and is_script():
            where, _, name = ours.partition(":")
            with own_imports():
                cls = getattr(importlib.import_module(f"evenload.integrations.script.{where}"), name)
        elif not issubclass(cls, getattr(module, "ThreadPool", ())):
            leave(f"{cls.__module__}.{cls.__qualname__}", "a class of its own")
        return object.__new__(cls)

    original.__new__ = make
    return None


def _take_loky(module: ModuleType, act: str) -> None:
    if not _runs[0].notes:
        with own_imports():
            where = importlib.import_module("evenload.integrations.script.loky_executor")
        getattr(where, act)(module)
    elif act == "take_over":
        _note_uses(
            module, "ProcessPoolExecutor.__init__", "joblib.Parallel", "it is not measured by --observe"
        )


class _Noted:
    """A method that is remembered when it is used, with no frame of its own in tracebacks."""

    def __init__(self, original: Any, what: str, why: str):
        self._original, self._told = original, (what, why)

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is not None:
            leave(*self._told)
        return self._original.__get__(instance, owner)


def _note_uses(module: ModuleType, name: str, what: str, why: str) -> None:
    owner, _, method = name.partition(".")
    kind = getattr(module, owner, None)
    if hasattr(kind, method):
        setattr(kind, method, _Noted(vars(kind).get(method, getattr(kind, method)), what, why))
