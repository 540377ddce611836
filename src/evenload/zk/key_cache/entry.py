"""A loaded key as facts and arrays, and back; what kernels take for an index is checked again."""

from pathlib import Path
from typing import Any

import numpy as np

from evenload.gpu.llvm import program
from evenload.zk.cpu import msm, ntt
from evenload.zk.cpu.msm import Bases
from evenload.zk.cpu.ntt import Domain
from evenload.zk.formats.zkey import COEFFICIENT
from evenload.zk.groth16 import VerificationKey
from evenload.zk.key import SECTIONS, CpuKey
from evenload.zk.verifier import Verifier

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
