"""Changes to modules of an engine, made as soon as they are imported, and not before."""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Act = Callable[[ModuleType], object]


class _Watcher(MetaPathFinder):
    """A finder that finds nothing itself, and runs what waits for a module when another finder has it."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Act]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.waiting:
            return None
        acts = self.waiting.pop(fullname)  # so that the search below does not come here
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            self.waiting[fullname] = acts
            return None
        execute = spec.loader.exec_module

        @wraps(execute)
        def execute_and_act(module: ModuleType) -> None:
            execute(module)
            for act in acts:
                act(module)

        setattr(spec.loader, "exec_module", execute_and_act)  # noqa: B010 (a method, to the type checker)
        return spec


_WATCHER = _Watcher()


def after_import(module: str, act: Act) -> None:
    """Run ``act`` on ``module`` now if it is imported, otherwise right after it will be."""
    if module in sys.modules:
        act(sys.modules[module])
        return
    if _WATCHER not in sys.meta_path:
        sys.meta_path.insert(0, _WATCHER)
    _WATCHER.waiting.setdefault(module, []).append(act)
