"""Ask programs for help, and with an option that none of them has; print what each says, as JSON.

    python asked_programs.py FILE ...

One process does it for all. What they import that is not of Python's own library is a stand-in: it would take
most of a minute, and what a program is asked has to be understood before any of it is used.
"""

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import sys
import traceback
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

UNKNOWN = "--no-such-option"
READ = ("part.py", "executor_overhead.py")  # they read the arguments of others


class Anything(type):
    """Whatever is looked up in it, and whatever it is called with: another."""

    def __getattr__(cls, name: str, /) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name, (Exception,), {})

    def __call__(cls, /, *_: Any, **__: Any) -> Any:
        return Anything("made", (Exception,), {})

    def __iter__(cls) -> Any:
        return iter(())

    def __format__(cls, _: str) -> str:
        return "?"

    def __or__(cls, other: Any) -> Any:
        return cls

    __ror__ = __getitem__ = __mul__ = __rmul__ = __truediv__ = __enter__ = __or__


class StandIn(ModuleType):
    """Has whatever is imported from it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name, (Exception,), {})


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds all modules of others. ``read`` are files of those that are to be what they are."""

    def __init__(self, *read: Path):
        self.read = {path.stem: path for path in read}

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name.partition(".")[0] in sys.stdlib_module_names:
            return None
        if name in self.read:
            return importlib.util.spec_from_file_location(name, self.read[name])
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def ended(code: CodeType, path: str, word: str) -> dict[str, Any]:
    """How the program ends, and what it says."""
    main = ModuleType("__main__")
    main.__file__ = path
    sys.modules["__main__"], sys.argv = main, [path, word]
    out, errors, exit_code = io.StringIO(), io.StringIO(), None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            exec(code, vars(main))
        except SystemExit as end:
            exit_code = end.code
        except BaseException:
            traceback.print_exc()
    return {"code": exit_code, "out": out.getvalue(), "errors": errors.getvalue()}


def main(paths: list[str]) -> None:
    said = {}
    sys.meta_path.insert(0, StandIns(*(Path(path) for path in paths if Path(path).name in READ)))
    for path in paths:
        code = compile(Path(path).read_bytes(), path, "exec")
        said[path] = [ended(code, path, word) for word in ("--help", UNKNOWN)]
    sys.stdout.write(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1:])
