"""Importing a file of the user's as a module, under any name."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from evenload.errors import ConfigError


def import_file(file: Path, name: str) -> ModuleType:
    """Import ``file`` as the module ``name``.

    Raises ConfigError if it is no Python file, else what the import raises.
    """
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{file} is no Python file", hint="give a file whose name ends in .py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
