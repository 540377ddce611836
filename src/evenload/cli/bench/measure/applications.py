"""Merkle trees and proofs over devices, each beside one device, the bound and Amdahl's prediction."""

import hashlib
import tempfile
from pathlib import Path
from typing import Any

from evenload.cli.bench.measure.trial import Setting, Trial, compared, quickest
from evenload.devices import DevicePool

__all__ = ["merkle", "prove"]


def merkle(setting: Setting) -> Trial:
    """The root of random leaves, on each selection; hashlib in a loop beside it."""
    from evenload.cli.bench.merkle import _measure, _write_leaves

    n_leaves = 1_000_000 if setting.is_quick else 2_000_000
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "leaves"
        _write_leaves(path, n_leaves)
        for spec in setting.specs:
            pool = DevicePool.find(spec)
            row, _ = _measure(pool, path, "rfc6962", "measured", 1 if setting.is_quick else 3)
            rows.append(_row(spec, row["n_devices"], row["total_s"], n_leaves, row))
        if setting.has_peers:
            leaves = path.read_bytes()[: 32 * (n_leaves // 10)]
            wall_s, _ = quickest(lambda: _plain_root(leaves), 1)
            peer = {**rows[0], "devices": "hashlib, one core", "work_s": wall_s * 10}
            peer |= {"per_s": n_leaves / (wall_s * 10), "x_bound": None, "utilisation_std": None}
            rows = [*compared(rows), {**peer, **dict.fromkeys(("speed_up", "efficiency", "amdahl"))}]
        else:
            rows = compared(rows)
    note = f"{n_leaves:,} leaves of 32 bytes, RFC 6962; per_s: leaves. hashlib: a tenth of them, times ten."
    return Trial("merkle", "", rows, note)


def prove(setting: Setting) -> Trial:
    """A batch of proofs on each selection; each is verified."""
    from evenload.cli.bench.prove import make_circuit, measure

    constraints, n_proofs = (2_000, 4) if setting.is_quick else (20_000, 16)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        key, witness = make_circuit(Path(folder), constraints)
        for spec in setting.specs:
            row = measure(DevicePool.find(spec), key, [str(witness)] * n_proofs, "measured")
            rows.append(_row(spec, row["n_devices"], row["work_s"], n_proofs, row))
    note = f"{n_proofs} proofs of {constraints:,} constraints, workers warm; per_s: proofs, each verified."
    return Trial("prove", "", compared(rows), note)


def _row(spec: str, n: int, work_s: float, n_items: int, row: dict[str, Any]) -> dict[str, Any]:
    return {
        "devices": spec,
        "n": n,
        "work_s": work_s,
        "per_s": n_items / work_s,
        "x_bound": row["ratio_to_bound"],
        "utilisation_std": row["utilisation_std"],
    }


def _plain_root(leaves: bytes) -> bytes:
    level = [hashlib.sha256(b"\0" + leaves[i : i + 32]).digest() for i in range(0, len(leaves), 32)]
    while len(level) > 1:
        odd = [level[-1]] if len(level) % 2 else []
        pairs = zip(level[::2], level[1::2], strict=False)
        level = [hashlib.sha256(b"\1" + a + b).digest() for a, b in pairs] + odd
    return level[0]
