"""The tables of docs/zk-measured.md, for docs_tables.py."""

from collections.abc import Sequence
from typing import Any

from result_files import Page

Row = dict[str, Any]


def joined(pages: Sequence[Page]) -> list[Row]:
    """The rows of several results; of two for one circuit, the later one's."""
    found: dict[str, Row] = {}
    for page in pages:
        found |= {row.get("circuit", f"{page['name']} {k}"): row for k, row in enumerate(page["rows"])}
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


def prove(pages: Sequence[Page]) -> str:
    rows = joined(pages)
    peers = "rapidsnark,÷ proof,÷ (load + first),snarkjs,÷ proof,÷ (load + first)"
    has_process = any("process" in row for row in rows)
    process = "process,process wall,rapidsnark ÷ process," if has_process else ""
    head = f"circuit,domain,key load,first proof,proof,{process}memory,{peers}"
    lines = [
        [
            row["circuit"],
            power(row["domain"]),
            *(seconds(row[name]) for name in ("key load", "first proof", "proof")),
            *(_process(row) if has_process else ()),
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
    return table(head.split(","), lines)


def _process(row: Row) -> tuple[str, str, str]:
    """A process for one proof: its CPU and wall seconds, and how many times that rapidsnark's takes."""
    return seconds(row.get("process")), seconds(row.get("process wall")), times(row.get("rapidsnark/process"))


def levels(pages: Sequence[Page]) -> str:
    head = "circuit,domain,level,for processors with,proof,rapidsnark ÷ proof,process,process wall,"
    head += "rapidsnark ÷ process,rapidsnark,snarkjs ÷ proof,snarkjs ÷ process"
    lines = [
        [
            row["circuit"],
            power(row["domain"]),
            f"`{row['level']}`",
            row["processors"],
            seconds(row["proof"]),
            times(row["rapidsnark/proof"]),
            seconds(row["process"]),
            seconds(row["process wall"]),
            times(row["rapidsnark/process"]),
            seconds(row["rapidsnark"]),
            times(row["snarkjs/proof"]),
            times(row["snarkjs/process"]),
        ]
        for page in pages
        for row in page["rows"]
    ]
    return table(head.split(","), lines)


def wgsl(pages: Sequence[Page]) -> str:
    rows = joined(pages)
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
    return table(head.split(","), lines)


def batch(pages: Sequence[Page]) -> str:
    rows = joined(pages)
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
    return table(head.split(","), lines)


def kernels(pages: Sequence[Page]) -> str:
    rows = joined(pages)
    lines = [
        [row["kernel"], "1 proof" if row["size"] == 1 else power(row["size"]), f"{row['ms']:.1f}"]
        for row in rows
    ]
    return table(["kernel (ifma52)", "size", "CPU ms"], lines)


def verify(pages: Sequence[Page]) -> str:
    rows = joined(pages)
    lines = [[row["how"], f"{row['cpu_ms']:.2f}", f"{row['times']:.1f}×"] for row in rows]
    return table(["verification", "CPU ms a proof", "one by one over it"], lines)


def service(pages: Sequence[Page]) -> str:
    names = ("devices", "clients", "requests", "workers killed", "lost", "wrong")
    figures = ("proofs/s", "p50 ms", "p99 ms", "longest ms")
    lines = [[*(str(row[k]) for k in names), *(f"{row[k]:.0f}" for k in figures)] for row in joined(pages)]
    return table([*names, *figures], lines)


TABLES = {
    "zk_prove": (prove, ("zk_prove", "zk_prove_1M")),
    "zk_levels": levels,
    "zk_wgsl": wgsl,
    "zk_batch": batch,
    "zk_kernels_ifma52": kernels,
    "zk_verify": verify,
    "zk_service": service,
}
