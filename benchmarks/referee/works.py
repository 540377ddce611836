"""Record the works that the referee replays, once: costs of items as they are, in JSON lines.

    python benchmarks/referee/works.py        (writes works/*.jsonl anew; the docs may have changed since)

The first line says where a work is from. Each other one is an item: its cost in any unit, the bytes that are
sent with it and, where a record has one, its fault: "raises", "kills its worker" or "hangs", the first time.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

WORKS = Path(__file__).parent / "works"
ROOT = Path(__file__).parents[2]


def sections() -> Iterable[tuple[float, int]]:
    """Words of a section, as of a prompt with its answer; the bytes of its first paragraph, the prompt."""
    for path in sorted((ROOT / "docs").rglob("*.md")):
        for text in re.split(r"^## ", path.read_text(encoding="utf-8"), flags=re.MULTILINE):
            if text.strip():
                yield len(text.split()), len("\n\n".join(text.split("\n\n")[:2]).encode())


def expert_batches(n_tokens: int = 2048) -> Iterable[tuple[float, int]]:
    """Tokens of a batch at the busiest of 64 experts, layer after layer; the bytes of its experts' ids."""
    for name in ("law", "intent"):
        layers = np.load(ROOT / f"tests/data/routing/routing_{name}.npz")["experts"]
        for layer in layers:
            for at in range(0, len(layer) - n_tokens + 1, n_tokens):
                batch = layer[at : at + n_tokens]
                yield int(np.bincount(batch.ravel(), minlength=64).max()), batch.nbytes


SOURCES = {
    "prompts": ("the sections of evenload's docs, words of each", sections),
    "experts": (
        "batches of 2,048 tokens through 26 layers of DeepSeek-V2-Lite's router (deepseek-ai/ESFT, MIT), the"
        " busiest expert's tokens of each",
        expert_batches,
    ),
}


if __name__ == "__main__":
    for name, (source, items) in SOURCES.items():
        lines = [{"work": name, "source": source}]
        lines += [
            {"item": number, "cost": cost, "bytes": size} for number, (cost, size) in enumerate(items())
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (WORKS / f"{name}.jsonl").write_text(text, encoding="utf-8")
        costs = np.array([line["cost"] for line in lines[1:]])
        print(name, len(costs), "items; longest over mean", round(costs.max() / costs.mean(), 1))
