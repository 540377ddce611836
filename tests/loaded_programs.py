"""Programs outside of the package as modules: their folder is on no path, and later they are forgotten."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType, SimpleNamespace

ROOT = Path(__file__).parents[1]


def load(path: str) -> ModuleType:
    """One program of the repository, such as "scripts/size.py", which nobody can import by its name."""
    folder, _, name = path.removesuffix(".py").rpartition("/")
    with loaded(folder, name) as (module,):
        return module


@contextmanager
def loaded(folder: str, *names: str) -> Iterator[list[ModuleType]]:
    """Modules of a folder of the repository, which find one another inside the block.

    Other modules of the same names, those of test rooms among them, are put aside until its end.
    """
    place = ROOT / folder
    stems = {path.stem for path in place.iterdir()}

    def put_aside() -> dict[str, ModuleType]:
        return {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in stems}

    finder = SimpleNamespace(
        find_spec=lambda name, path=None, _=None: None if path else PathFinder.find_spec(name, [str(place)])
    )
    before = put_aside()
    sys.meta_path.insert(0, finder)  # type: ignore[arg-type]
    try:
        yield [importlib.import_module(name) for name in names]
    finally:
        sys.meta_path.remove(finder)  # type: ignore[arg-type]
        put_aside()
        sys.modules.update(before)
