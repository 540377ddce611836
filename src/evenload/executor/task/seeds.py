"""Random numbers that depend on the item alone: seeds by item, and setting them before each.

Seeded are the global generators of Python, numpy and torch; the latter two where they are loaded, or as soon
as the item loads them: what an item gets must not depend on what its worker has loaded before.
"""

import contextlib
import hashlib
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from typing import Any, NamedTuple


def item_seed(seed: int, item: str, sample: int = 0) -> int:
    """Return a seed in 0 .. 2**63 - 1 that depends on nothing but its arguments.

    It is the same on every machine, for any number of devices, in any order, and stays what it is when items
    are added or left out. ``sample`` tells several results of one item apart. 63 bits, because that is what
    every generator (NumPy, torch, Python) and every JSON reader with 64-bit integers takes.
    """
    text = f"{seed}\0{item}\0{sample}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def with_seeds(seed: int | None, indices: Iterable[int], items: Sequence[Any]) -> Sequence[Any]:
    """Return ``items`` as they are sent: each in a pair with its own seed, if a run has one."""
    if seed is None:
        return items
    return [(item_seed(seed, str(index)), item) for index, item in zip(indices, items, strict=True)]


class _Generator(NamedTuple):
    seed: Callable[[Any, int], Any]
    state: Callable[[Any], Any]
    restore: Callable[[Any, Any], Any]


GENERATORS = {  # by the module that has one for the whole process
    "random": _Generator(
        lambda _, seed: random.seed(seed),
        lambda _: random.getstate(),
        lambda _, state: random.setstate(state),
    ),
    "numpy.random": _Generator(
        lambda module, seed: module.seed(seed % 2**32),
        lambda module: module.get_state(),
        lambda module, state: module.set_state(state),
    ),
    "torch": _Generator(
        lambda module, seed: module.manual_seed(seed),
        lambda module: module.get_rng_state(),
        lambda module, state: module.set_rng_state(state),
    ),
}


class Seeding:
    """A ``with`` block that sets the generators before each item; afterwards they go on as before.

    Within the block it is a finder of modules, which sees those that an item imports.
    """

    def __init__(self) -> None:
        self._seed = 0
        self._before: dict[str, Any] = {}

    def __enter__(self) -> "Seeding":
        for name, module in _loaded():
            with contextlib.suppress(AttributeError):
                self._before[name] = GENERATORS[name].state(module)
        sys.meta_path.insert(0, self)  # pyrefly: ignore
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ValueError):  # an item has removed it
            sys.meta_path.remove(self)  # pyrefly: ignore
        for name, state in self._before.items():
            GENERATORS[name].restore(sys.modules[name], state)

    def take(self, pair: tuple[int, Any]) -> Any:
        """Set all generators for an item, which comes with its seed, and return it."""
        self._seed, item = pair
        for name, module in _loaded():
            self._set(name, module)
        return item

    def _set(self, name: str, module: Any) -> None:
        with contextlib.suppress(AttributeError):  # it is not loaded to its end
            GENERATORS[name].seed(module, self._seed)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Find what the other finders find, and have a generator set as soon as its module is loaded."""
        if name not in GENERATORS:
            return None
        others = (one for one in sys.meta_path if one is not self and hasattr(one, "find_spec"))
        finds = (finder.find_spec(name, path, target) for finder in others)
        spec = next((one for one in finds if one is not None), None)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_set(module: Any) -> None:
                load(module)
                self._set(name, module)

            with contextlib.suppress(AttributeError):
                spec.loader.exec_module = load_and_set  # pyrefly: ignore
        return spec


def _loaded() -> Iterator[tuple[str, Any]]:
    for name in GENERATORS:
        module = sys.modules.get(name)
        if module is not None:
            yield name, module
