"""The tables of docs/merkle.md, for docs_tables.py."""

from collections.abc import Sequence
from typing import Any

from result_files import Page
from zk_tables import table

Row = dict[str, Any]
BY = ("AVX-512", "SHA-NI", "AVX2", "SSE", "hashlib")


def ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f} ms" if value >= 100 else f"{value:.1f} ms"


def by_scheme(pages: Sequence[Page], leaves: int) -> dict[str, dict[str, Row]]:
    """scheme -> who hashed -> row, of the rows with so many leaves; WGSL under that name."""
    found: dict[str, dict[str, Row]] = {}
    for row in pages[0]["rows"]:
        if row["leaves"] == leaves:
            found.setdefault(row["scheme"], {})[row["by"].partition(",")[0]] = row
    return found


def trees(pages: Sequence[Page]) -> str:
    lines = []
    for scheme, by in by_scheme(pages, 100_000).items():
        cpu = {name: by[name]["cpu_ms"] for name in BY if name in by}
        faster = [f"{cpu['hashlib'] / cpu[n]:.1f}×" if n in cpu else "–" for n in ("AVX-512", "AVX2")]
        lines.append([f"`{scheme}`", *(ms(cpu.get(name)) for name in BY), *faster])
    head = ["scheme", *BY, "AVX-512 over hashlib", "AVX2 over hashlib"]
    return table(head, lines)


def poseidon(pages: Sequence[Page]) -> str:
    by = by_scheme(pages, 1 << 14).get("poseidon", {})
    lines = [[name, ms(row["cpu_ms"]), f"{row['ns_per_leaf'] / 1e3:.1f} µs"] for name, row in by.items()]
    return table(["16,384 leaves", "CPU time", "per leaf"], lines)


def wgsl(pages: Sequence[Page]) -> str:
    lines = []
    for scheme, by in by_scheme(pages, 1 << 17).items():
        ours, peer = by["WGSL"], by["hashlib"]
        cells = [ours["cpu_ms"], ours["wall_ms"], peer["cpu_ms"], peer["wall_ms"]]
        lines.append([f"`{scheme}`", *map(ms, cells), f"{peer['cpu_ms'] / ours['cpu_ms']:.1f}×"])
    head = ["scheme", "WGSL, CPU", "WGSL, wall", "hashlib, CPU", "hashlib, wall", "by CPU"]
    return table(head, lines)


def threads(pages: Sequence[Page]) -> str:
    """Wall time of a tree by level, on one thread and on two."""
    wall: dict[str, dict[int, float]] = {}
    for row in pages[0]["rows"]:
        wall.setdefault(row["by"], {})[row["threads"]] = row["wall_ms"]
    lines = [[by, ms(one[1]), ms(one[2]), f"{one[1] / one[2]:.2f}×"] for by, one in wall.items()]
    return table(["instructions", "one thread", "two threads", "faster"], lines)


def devices(pages: Sequence[Page]) -> str:
    lines = [
        [
            f"`{row['scheme']}`",
            row["strategy"],
            str(row["workers"]),
            f"{row['busiest_cpu_s']:.2f} s",
            f"{row['parent_cpu_s']:.3f} s",
            f"{row['wall_s']:.2f} s",
            f"{row['ratio_to_bound']:.2f}",
            *(f"{row[name]:.2f}×" for name in ("by_cpu", "by_wall", "amdahl")),
        ]
        for row in pages[0]["rows"]
    ]
    head = ["scheme", "strategy", "workers", "busiest worker, CPU", "parent, CPU", "wall", "ratio to bound"]
    return table([*head, "by CPU", "by wall", "Amdahl"], lines)


TABLES = {
    "merkle": trees,
    "merkle_poseidon": (poseidon, ("merkle",)),
    "merkle_wgsl": (wgsl, ("merkle",)),
    "merkle_sha256": threads,
    "merkle_devices": devices,
}
