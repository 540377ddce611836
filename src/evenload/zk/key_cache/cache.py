"""The private cache of checked keys: entries by content of the key, kernels and code; the oldest go first.

An entry is a loaded key as facts and arrays; what kernels take for an index is checked again when it is read.
"""

import contextlib
import errno
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from evenload._private_files import plain_file
from evenload.errors import printable
from evenload.gpu.llvm import program, programs
from evenload.native import store
from evenload.zk.cpu import msm, ntt
from evenload.zk.cpu.msm import Bases
from evenload.zk.cpu.ntt import Domain
from evenload.zk.formats.zkey import COEFFICIENT
from evenload.zk.groth16 import VerificationKey
from evenload.zk.key import SECTIONS, CpuKey
from evenload.zk.key_cache.array_file import map_arrays, write_arrays
from evenload.zk.verifier import Verifier

WHAT = "checked proving keys"


def kept_key(path: Path, level: str, load: Callable[[], CpuKey]) -> CpuKey:
    """The key of the file ``path`` for kernels of ``level``: mapped if it was kept, else loaded, then kept.

    Of several processes that miss the same key one loads it, and the others wait for it. A damaged entry is
    made anew, and a disk that is full costs the next process time, and this one nothing.
    Raises ConfigError if others may write the cache; OSError, and what ``load`` raises.
    """
    digest = file_digest(path)
    at = _entry_path(digest, level)

    def keep(at: Path, key: CpuKey) -> None:
        if key.sha256 == digest:  # the file was not exchanged meanwhile
            _write(at, key)

    return store.kept_at(at, lambda at: _found(at, digest, path), load, keep)[0]


def forget(sha256: str, level: str) -> None:
    """Remove the entry of a key whose proofs were wrong."""
    at = _entry_path(sha256, level)
    if at is not None:
        with contextlib.suppress(OSError):
            at.unlink()


def _entry_path(digest: str, level: str) -> Path | None:
    """None where there is no place for a cache. Raises ConfigError if others may write there."""
    code = hashlib.sha256(f"{programs.bulk_recipe(level).code_hash()} {code_hash()}".encode())
    return store.place_of(f"keys/{digest[:40]}-{level}-{code.hexdigest()[:16]}.key", WHAT)


def _found(at: Path, digest: str, path: Path) -> CpuKey | None:
    found = map_arrays(at, WHAT)
    key = key_of(*found, printable(str(path))) if found is not None else None
    if key is None or key.sha256 != digest:
        return None
    with contextlib.suppress(OSError):
        os.utime(at)  # used just now: the oldest are removed first
    return key


def _write(at: Path, key: CpuKey) -> None:
    from evenload._memory_sizes import limit_from
    from evenload.settings import resolve

    limit = limit_from(resolve().key_cache_limit, "key_cache_limit")
    facts, arrays = parts_of(key)
    n_bytes = sum(array.nbytes for array in arrays.values())
    if n_bytes <= limit:
        store.remove_oldest(at.parent.glob("*.key"), limit - n_bytes, lambda facts: facts.st_size)
        write_arrays(at, facts, arrays)


SETTLED_S = 2.0  # file systems keep times in steps; a file changed within one step looks unchanged


def file_digest(path: Path) -> str:
    """The SHA-256 of what ``path`` holds, in hex.

    Whoever changes a file changes its time of change (``st_ctime``), which no program can set: a file of the
    same device, number, size and times as one that was read before has its digest. A file that was changed in
    the last two seconds is always read.
    Raises OSError, also for what is no plain file.
    """
    with plain_file(path) as file:
        before = os.fstat(file.fileno())
        is_settled = 0 < before.st_ctime < time.time() - SETTLED_S and before.st_ino != 0

        def read() -> str:
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()  # pyrefly: ignore
            if _facts(os.fstat(file.fileno())) != _facts(before):
                raise OSError(errno.EBUSY, "it was changed while it was read", str(path))
            return digest

        if os.name != "posix" or not is_settled:
            return read()
        return store.remembered("digests", _facts(before), read)


def _facts(facts: os.stat_result) -> str:
    names = ("st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns")
    return repr([getattr(facts, name) for name in names])


_NAMES = ("sha256", "level", "n_vars", "n_public")


def code_hash() -> str:
    """Hash of all code that decides what an entry holds, besides the kernels."""
    paths = (msm.__file__, ntt.__file__, __file__, str(Path(__file__).parents[1] / "key.py"))
    return program.remembered_hash(tuple(map(str, paths)))


def parts_of(key: CpuKey) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """(facts, arrays) that ``key_of`` makes the same key of."""
    verification = key.verifier.key
    facts = {name: getattr(key, name) for name in _NAMES}
    facts |= {"domain": key.domain.size, "n_given": {s: b.n_given for s, b in key.bases.items()}}
    facts["points"] = [getattr(verification, name) for name in VerificationKey.__slots__]
    arrays = {"coefficients": key.coefficients.view(np.uint8).reshape(-1, COEFFICIENT.itemsize)}
    arrays |= {f"header {name}": row for name, row in key.header.items()}
    arrays |= {f"domain {name}": table for name, table in key.domain.tables().items()}
    arrays |= {f"lines {k}": table for k, table in enumerate(key.verifier.tables())}
    for section, bases in key.bases.items():
        arrays |= {f"points {section}": bases.points, f"keep {section}": bases.keep}
    return facts, arrays


def key_of(facts: dict[str, Any], arrays: dict[str, np.ndarray], name: str) -> CpuKey | None:
    """The key, with the large arrays where they lie; None if an index in them is out of range."""
    coefficients = arrays["coefficients"].reshape(-1).view(COEFFICIENT)
    bases = {
        section: Bases(degree, facts["level"], facts["n_given"][section],
                       arrays[f"keep {section}"], arrays[f"points {section}"])
        for section, degree in SECTIONS.items()
    }  # fmt: skip
    limits = {"matrix": 2, "row": facts["domain"], "wire": facts["n_vars"]}
    if any(_exceeds(coefficients[column], limit) for column, limit in limits.items()):
        return None
    if any(_exceeds(one.keep, one.n_given) for one in bases.values()):
        return None
    alpha1, beta2, gamma2, delta2, ic = map(_point, facts["points"])
    verification = VerificationKey(alpha1, beta2, gamma2, delta2, ic)
    tables = {n.removeprefix("domain "): array for n, array in arrays.items() if n.startswith("domain ")}
    lines = [arrays[f"lines {k}"] for k in range(3)]
    return CpuKey(
        name=name,
        domain=Domain(facts["domain"], facts["level"], tables),
        coefficients=coefficients,
        bases=bases,
        header={n.removeprefix("header "): row for n, row in arrays.items() if n.startswith("header ")},
        verifier=Verifier(verification, is_checked=True, tables=lines),
        seconds=0.0,
        **{name: facts[name] for name in _NAMES},
    )


def _exceeds(indices: np.ndarray, limit: int) -> bool:
    return bool(len(indices)) and not 0 <= int(indices.min()) <= int(indices.max()) < limit


def _point(value: Any) -> Any:
    """Lists, as JSON gives them, to tuples."""
    return tuple(map(_point, value)) if isinstance(value, list) else value
