"""Writes the tables of docs/zk.md from benchmarks/results, so that no figure is typed by hand.

    python benchmarks/zk_tables.py

A table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``; a result that is not there leaves its
table as it is.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "zk.md"
RESULTS = ROOT / "benchmarks" / "results"
Row = dict[str, Any]


def results(*names: str) -> list[Row]:
    """The rows of several results; of two for one circuit, the later name's."""
    found: dict[str, Row] = {}
    for name in names:
        path = RESULTS / f"{name}.json"
        if path.exists():
            rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
            found |= {row.get("circuit", f"{name} {k}"): row for k, row in enumerate(rows)}
    return list(found.values())


def seconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f}" if value >= 20 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def times(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}×" if value >= 10 else f"{value:.1f}×"


def power(size: int) -> str:
    return f"2^{size.bit_length() - 1}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def prove() -> str | None:
    rows = results("zk_prove", "zk_prove_1M")
    peers = "rapidsnark,÷ proof,÷ (load + first),snarkjs,÷ proof,÷ (load + first)"
    head = f"circuit,domain,key load,first proof,proof,memory,{peers}"
    lines = [
        [
            row["circuit"],
            power(row["domain"]),
            *(seconds(row[name]) for name in ("key load", "first proof", "proof")),
            f"{row['RSS MB']:.0f} MB",
            seconds(row.get("rapidsnark")),
            times(row.get("rapidsnark/proof")),
            times(row.get("rapidsnark/(load+first)")),
            seconds(row.get("snarkjs")),
            times(row.get("snarkjs/proof")),
            times(row.get("snarkjs/(load+first)")),
        ]
        for row in rows
    ]
    return table(head.split(","), lines) if rows else None


def wgsl() -> str | None:
    rows = results("zk_wgsl")
    head = "circuit,domain,key load,first proof,proof,wall,longest submission,snarkjs,÷ proof"
    lines = [
        [
            row["circuit"],
            power(row["domain"]),
            *(seconds(row[name]) for name in ("key load", "first proof", "proof", "wall")),
            f"{row['longest dispatch, ms']:.0f} ms",
            seconds(row.get("snarkjs")),
            times(row.get("snarkjs/proof")),
        ]
        for row in rows
    ]
    return table(head.split(","), lines) if rows else None


def batch() -> str | None:
    rows = results("zk_batch")
    head = "devices,start and key load,16 proofs,latency of one,proofs/s,ratio to bound,"
    head += "speed-up,efficiency,spread of utilisation,with start,Amdahl"
    lines = [
        [
            f"`{row['devices']}`",
            *(f"{row[name]:.2f} s" for name in ("start_s", "work_s", "latency_s")),
            *(f"{row[name]:.2f}" for name in ("proofs_per_s", "ratio_to_bound")),
            f"{row['speed_up']:.2f}×",
            *(f"{row[name]:.2f}" for name in ("efficiency", "utilisation_std")),
            *(f"{row[name]:.2f}×" for name in ("speed_up_with_start", "amdahl_with_start")),
        ]
        for row in rows
    ]
    return table(head.split(","), lines) if rows else None


def kernels() -> str | None:
    rows = results("zk_kernels_ifma52")
    lines = [
        [row["kernel"], "1 proof" if row["size"] == 1 else power(row["size"]), f"{row['ms']:.1f}"]
        for row in rows
    ]
    return table(["kernel (ifma52)", "size", "CPU ms"], lines) if rows else None


def verify() -> str | None:
    rows = results("zk_verify")
    lines = [[row["how"], f"{row['cpu_ms']:.2f}", f"{row['times']:.1f}×"] for row in rows]
    return table(["verification", "CPU ms a proof", "one by one over it"], lines) if rows else None


def shared(name: str) -> str:
    """Says so if the machine had other work while a result with wall times was measured."""
    path = RESULTS / f"{name}.json"
    page = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    load, cores = page.get("load_average"), page.get("machine", {}).get("cores", 1)
    if load is None or load <= cores:
        return ""
    return f"\nOther work was running at the same time: a load of {load:.0f} on {cores} cores.\n"


TABLES: dict[str, Callable[[], str | None]] = {
    "zk_prove": prove,
    "zk_wgsl": wgsl,
    "zk_batch": batch,
    "zk_kernels_ifma52": kernels,
    "zk_verify": verify,
}


def rewritten(page: str, tables: Mapping[str, Callable[[], str | None]] = TABLES) -> str:
    """``page`` with every table made anew. Raises SystemExit for a mark that has no table."""

    def fresh(match: re.Match[str]) -> str:
        if match["name"] not in tables:
            raise SystemExit(f"no table is called {match['name']}")
        made = tables[match["name"]]()
        if made is None:
            return match[0]
        return f"<!-- table: {match['name']} -->\n\n{made}\n{shared(match['name'])}\n<!-- end -->"

    return re.sub(r"<!-- table: (?P<name>\w+) -->.*?<!-- end -->", fresh, page, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
