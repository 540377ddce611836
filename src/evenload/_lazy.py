"""Lazy names of a package: imported on first use (PEP 562)."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import evenload._parts  # noqa: F401 (an import of what is not installed says what to install)


def lazy_names(
    package: str, homes: Mapping[str, str], modules: str = ""
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package that imports a name on its first use.

    homes    each module, relative to ``package``, and the public names that it defines, between blanks
    modules  names of modules that are attributes of the package, too, though not listed
    """
    home_of = {name: module for module, names in homes.items() for name in names.split()}

    def load(name: str) -> Any:
        if name in modules.split():
            return importlib.import_module(f"{package}.{name}")
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{home_of[name]}"), name)

    return load, lambda: sorted(home_of), sorted(home_of)
