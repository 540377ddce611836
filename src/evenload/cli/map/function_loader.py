"""Loads the function or class that a command line names: ``module:name`` or ``file.py:name``."""

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from evenload.errors import ConfigError, UnknownName, quoted

__all__ = ["load_function"]

# Folders of sys.path that hold installed packages.
INSTALLED = ("site-packages", "dist-packages")


def load_function(target: str) -> Any:
    """Import and return the function or class that ``target`` names; the name may have dots.

    Raises ConfigError if there is no such module or file, or importing it fails; UnknownName for the name.
    """
    module_name, colon, name = target.rpartition(":")
    if not colon or not module_name or not name:
        raise ConfigError(
            f"{quoted(target)} is not module:function", hint="write mymodule:function or file.py:function"
        )
    module = _import_module(module_name)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            public = [key for key in vars(found) if not key.startswith("_")]
            raise UnknownName(f"name in {module_name}:", part, public)
        found = getattr(found, part)
    return found


def _import_module(name: str) -> Any:
    try:
        if name.endswith(".py"):
            return _import_file(Path(name))
        _add_current_folder()
        return importlib.import_module(name)
    except ConfigError:
        raise
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:
            raise ConfigError(f"{name} cannot be imported: {error}") from error
        hint = (
            f"write {name}.py:function" if Path(f"{name}.py").is_file() else "check the name, or install it"
        )
        raise ConfigError(f"there is no module {quoted(name)}", hint=hint) from error
    except SystemExit as error:
        raise ConfigError(
            f"{name} cannot be imported: it ends the program, sys.exit({quoted(error.code)})",
            hint="put what a script does under: if __name__ == '__main__'",
        ) from error
    except Exception as error:
        raise ConfigError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error


def _add_current_folder() -> None:
    """Let modules in the current folder be imported: before installed ones, after Python's own."""
    folder = str(Path.cwd())
    if folder not in sys.path:
        installed = (at for at, entry in enumerate(sys.path) if Path(entry).name in INSTALLED)
        sys.path.insert(next(installed, len(sys.path)), folder)


def _import_file(path: Path) -> Any:
    """Import a file; files beside it can be imported, too, if no other module has their name.

    The module gets the file's own name if a worker can import it by that, so that its classes are the same
    everywhere; else (``signal.py``, ``my.script.py``) a name that no module can have: it is sent by value.
    """
    if not path.is_file():
        raise ConfigError(f"there is no file {path}", hint="check the path")
    file = path.resolve()
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    if _is_importable_as(path.stem, file):
        return importlib.import_module(path.stem)
    from evenload.executor.task.user_file import import_file

    return import_file(file, f"evenload_file:{path.stem}")


def _is_importable_as(name: str, file: Path) -> bool:
    """Whether ``import name`` would import this file."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return False
    return spec is not None and spec.origin is not None and Path(spec.origin).resolve() == file
