"""Making a ``PreparedTask``, which can be sent, of the callable that a user gives."""

import functools
import hashlib
import importlib.machinery
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from evenload._arguments import whole
from evenload.errors import ConfigError, quoted
from evenload.executor.task.hybrid import Implementation, Implementations
from evenload.executor.task.hybrid import Task as HybridTask
from evenload.executor.task.item_context import CallerContext
from evenload.executor.task.task import PreparedTask
from evenload.executor.transport.pickling import pack

MOST_TASKS = 256  # that are kept
_BY_VALUE_LOCK = threading.RLock()  # cloudpickle's list of modules is one for all threads


class Tasks:
    """The prepared tasks of an executor, each once, so that workers keep what they have built of it."""

    def __init__(self) -> None:
        self._tasks: dict[tuple, PreparedTask] = {}
        self._n_tasks = 0
        self._lock = threading.Lock()  # of both: runs begin in any thread

    def prepare(
        self,
        fn: Any,
        *,
        batch: int | None = None,
        may_split: bool = True,
        is_spread: bool = False,
        is_tidied: bool = False,
        sends: bool = True,
        caller: CallerContext | None = None,
        is_seeded: bool = False,
    ) -> PreparedTask:
        """Return the task for ``fn`` with these options, the same one each time.

        sends  it goes to another process; the other options are those of ``PreparedTask``
        Raises ConfigError if ``fn`` cannot be called, built or sent, or if ``batch`` is below 1.
        """
        given = fn
        if isinstance(given, HybridTask):
            cpu, gpu = (None if one is None else implementation(one, sends) for one in (given.cpu, given.gpu))
            fn = Implementations(str(given), cpu, gpu)
        _check(fn, batch)
        pickled = pickle_callable(fn) if sends else (b"", [])
        options: dict[str, Any] = {"batch": batch, "may_split": may_split, "is_spread": is_spread}
        options |= {"is_tidied": is_tidied, "caller": caller, "is_seeded": is_seeded}
        key = (_digest(pickled) if sends else id(given), *map(repr, options.values()))
        with self._lock:
            task = self._tasks.get(key)
            if task is None:
                self._n_tasks += 1
                task = _described(self._n_tasks, given, fn, pickled, options)
                self._tasks[key] = task
                if len(self._tasks) > MOST_TASKS:
                    del self._tasks[next(iter(self._tasks))]
            return task


def _described(number: int, given: Any, fn: Any, pickled: tuple[bytes, list], options: dict) -> PreparedTask:
    if isinstance(fn, Implementations):
        return PreparedTask(number, str(given), fn, pickled, True, "", **options)
    is_class = is_stateful(fn)
    device_as = _device_parameter(fn) if is_class else None
    return PreparedTask(number, name_of(fn), fn, pickled, is_class, device_as, **options)


def implementation(fn: Any, sends: bool = True) -> Implementation:
    """Pack ``fn``, a function or a class, for a task that builds it in its worker; see ``Tasks.prepare``."""
    _check(fn, None)
    is_class = is_stateful(fn)
    device_as = _device_parameter(fn) if is_class else None
    if not sends:
        return Implementation(fn, None, is_class, device_as)
    body, buffers = pickle_callable(fn)
    return Implementation(None, (body, [bytes(buffer) for buffer in buffers]), is_class, device_as)


def is_stateful(fn: Any) -> bool:
    """Whether ``fn`` is a class (or a ``functools.partial`` of one) whose instances can be called."""
    cls = fn.func if isinstance(fn, functools.partial) else fn
    return isinstance(cls, type) and any("__call__" in vars(base) for base in cls.__mro__)


def name_of(fn: Any) -> str:
    """Return the name of a task for messages; of a partial its own, if ``named`` gave it one."""
    if isinstance(fn, HybridTask):
        return repr(fn)
    # Not by vars(fn), which gives a partial an empty dict that it is pickled with from then on: another task.
    inner = fn.func if isinstance(fn, functools.partial) and not hasattr(fn, "__qualname__") else fn
    return getattr(inner, "__qualname__", None) or type(inner).__name__


def named(name: str, task: Any, *args: Any) -> Any:
    """Return a partial of ``task`` that has this name in messages, summaries and events."""
    partial = functools.partial(task, *args)
    partial.__qualname__ = name  # pyrefly: ignore
    return partial


def pickle_callable(fn: Any) -> tuple[bytes, list]:
    """Pickle ``fn``, by name if a fresh interpreter can import it, else by value; bytes and buffers.

    Raises ConfigError if it cannot be pickled.
    """
    try:
        with _by_value(_home(fn)) as is_by_value:
            return pack(fn, by_name=not is_by_value, by_file=True)
    except Exception as error:
        raise ConfigError(
            f"{name_of(fn)} cannot be sent to a worker: {_culprit(fn)}{type(error).__name__}: {error}",
            hint="open files, locks and connections inside the function, or use backend='inline'",
        ) from error


def _culprit(fn: Any) -> str:
    """Name the variable of a function that cannot be sent, as the beginning of a reason, or "" if unknown."""
    try:
        used = inspect.getclosurevars(getattr(fn, "func", fn))
        for name, value in (*used.nonlocals.items(), *used.globals.items()):
            try:
                pack(value)
            except Exception:
                return f"it uses {quoted(name)}, "
    except Exception:  # it is no function, or any of this is the user's own code
        pass
    return ""


def _check(fn: Any, batch: int | None) -> None:
    if not callable(fn):
        raise ConfigError(f"{quoted(fn)} cannot be called", hint="give a function, or a class with __call__")
    if inspect.iscoroutinefunction(fn):
        raise ConfigError(
            f"{name_of(fn)} is a coroutine function", hint="wrap it: lambda x: asyncio.run(f(x))"
        )
    if batch is not None:
        whole("batch", batch, least=1, most=None)


def _digest(pickled: tuple[bytes, list]) -> bytes:
    digest = hashlib.blake2b(pickled[0], digest_size=16)
    for buffer in pickled[1]:
        digest.update(buffer)
    return digest.digest()


def _device_parameter(cls: Callable) -> str | None:
    """Return how the constructor takes the device: as "device", as only argument (""), or not (None)."""
    try:
        parameters = inspect.signature(cls).parameters
    except (ValueError, TypeError):  # some extension types do not say
        return None
    bound = cls.keywords if isinstance(cls, functools.partial) else {}
    if "device" in parameters:
        return None if "device" in bound else "device"
    needed = [
        parameter
        for parameter in parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if len(needed) > 1 or any(parameter.kind is parameter.KEYWORD_ONLY for parameter in needed):
        names = ", ".join(parameter.name for parameter in needed)
        raise ConfigError(
            f"the constructor of {name_of(cls)} needs {names}",
            hint="bind them: functools.partial(YourClass, weights='w.pt'); the device is given as device=",
        )
    return "" if needed else None


def _home(fn: Any) -> ModuleType | None:
    """Return the module in which ``fn`` is defined."""
    inner = fn.func if isinstance(fn, functools.partial) else fn
    inner = inner if isinstance(inner, type) or hasattr(inner, "__code__") else type(inner)
    return sys.modules.get(getattr(inner, "__module__", None) or "")


@contextmanager
def _by_value(module: ModuleType | None) -> Iterator[bool]:
    """Have cloudpickle send the contents of ``module`` by value if a worker could not import it."""
    if module is None or module.__name__ == "__main__" or _is_importable(module):
        yield False
        return
    import cloudpickle

    with _BY_VALUE_LOCK:
        already = module.__name__ in cloudpickle.list_registry_pickle_by_value()
        if not already:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield True
        finally:
            if not already:
                cloudpickle.unregister_pickle_by_value(module)


def _is_importable(module: ModuleType) -> bool:
    """Whether a fresh interpreter with this ``sys.path`` finds the same module under its name.

    It does not if a test runner or notebook has loaded the module from a file elsewhere.
    """
    file = getattr(module, "__file__", None)
    if not file:
        return module.__spec__ is not None
    spec, path, name = None, None, ""
    for part in module.__name__.split("."):
        name = f"{name}.{part}" if name else part
        spec = _find(name, path)
        if spec is None:
            return False
        # A package that is loaded may look in more folders than its spec says.
        path = getattr(sys.modules.get(name), "__path__", spec.submodule_search_locations)
    return spec is not None and spec.origin in (None, file)


def _find(name: str, path: Any) -> importlib.machinery.ModuleSpec | None:
    for finder in sys.meta_path:
        find_spec = getattr(finder, "find_spec", None)
        try:
            spec = find_spec(name, path) if find_spec else None
        except ImportError:  # a part of evenload that is not there
            return None
        if spec is not None:
            return spec
    return None
