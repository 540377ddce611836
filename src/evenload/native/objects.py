"""Where the machine code of a program comes from: shipped with the package, kept in the cache, or compiled.

``EVENLOAD_KERNELS=compile`` passes over what is shipped.
"""

import hashlib
import os
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenload._terminal import log_of
from evenload.native import machine, store

FOLDER = Path(__file__).parent / "objects"
log = log_of(__name__)


@dataclass(frozen=True, slots=True)
class Origin:
    """The place where a program's code came from: ``how`` is "shipped", "cached" or "compiled"."""

    name: str
    how: str
    wall_s: float


origins: list[Origin] = []  # of what this process has loaded, in order


def obtained(
    name: str,
    code_hash: Callable[[], str],
    compile_it: Callable[[], bytes],
    needs: frozenset[str] = frozenset(),
) -> tuple[Any, Origin]:
    """(engine, origin) of the program ``name``.

    code_hash   what its code is made from (code_hash.py)
    compile_it  the object for this very processor, if there is none yet
    needs       features beyond the baseline that the code uses

    Raises ConfigError if the cache is not private to this user.
    """
    start, source = time.perf_counter(), code_hash()
    code, how = _shipped(name, source, needs), "shipped"
    if code is None:
        code, was_kept = store.kept(name, _host_key(name, source), compile_it)
        how = "cached" if was_kept else "compiled"
    engine = machine.loaded(code)
    origin = Origin(name, how, time.perf_counter() - start)
    origins.append(origin)
    return engine, origin


def shipped_file(name: str, source: str, baseline: str, needs: frozenset[str]) -> tuple[Path, str]:
    """The file of an object for a baseline, and the key it is sealed with."""
    facts = (name, source, baseline, machine.features_of(baseline, needs))
    key = hashlib.sha256(repr(facts).encode()).hexdigest()
    return FOLDER / baseline / f"{name}-{key[:16]}.o", key


def packed(key: str, code: bytes) -> bytes:
    """What a shipped file holds."""
    return zlib.compress(store.sealed(key, code), 9)


def read_shipped(path: Path, key: str) -> bytes | None:
    """The code, or None if there is no such file (its source was changed) or a damaged one."""
    try:
        code = store.unsealed(key, zlib.decompress(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, zlib.error) as error:
        log.warning("%s is not used: %s", path, error)
        return None
    if code is None:
        log.warning("%s is not used: it is damaged", path)
    return code


def _shipped(name: str, source: str, needs: frozenset[str]) -> bytes | None:
    for baseline in [] if os.environ.get("EVENLOAD_KERNELS") == "compile" else machine.baselines_here():
        if not needs <= machine.host_features():
            continue
        path, key = shipped_file(name, source, baseline, needs)
        code = read_shipped(path, key)
        if code is not None:
            return code
    return None


def _host_key(name: str, source: str) -> str:
    llvm = machine.binding()
    facts = (name, source, llvm.get_default_triple(), *machine.processor(), llvm.llvm_version_info)
    return hashlib.sha256(repr(facts).encode()).hexdigest()
