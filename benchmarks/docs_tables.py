"""Make every table of measured figures in the docs anew from benchmarks/results.

    python benchmarks/docs_tables.py

A table stands between ``<!-- table: NAME -->`` and ``<!-- end of table -->``, and ends with a line for each
result that it is made of: processor, what else ran, how far runs differ. A result that is not there leaves
its table as it is. No figure of a table is typed by hand: tests/docs/test_figures.py finds those.
"""

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import clients_tables
import executor_tables
import gpu_tables
import merkle_tables
import moe_tables
import pipeline_tables
import policy_tables
import training_tables
import zk_tables
from result_files import ROOT, Page, origin, read

DOCS = ROOT / "docs"
Maker = Callable[[Sequence[Page]], str]
# By page: the name of a table -> how it is made, and of which results if they are not called as it is.
PAGES: Mapping[str, Mapping[str, Maker | tuple[Maker, tuple[str, ...]]]] = {
    "clients-measured.md": clients_tables.TABLES,
    "explanation/executor-speed.md": executor_tables.SPEED,
    "explanation/faults.md": executor_tables.FAULTS,
    "explanation/pipelines.md": pipeline_tables.TABLES,
    "explanation/policies.md": policy_tables.TABLES,
    "how-to/many-adapters.md": clients_tables.ADAPTERS,
    "how-to/clone-experts.md": moe_tables.CLONES,
    "how-to/moe-in-engines.md": moe_tables.ENGINES,
    "how-to/ray.md": executor_tables.RAY,
    "how-to/train-on-unequal-gpus.md": training_tables.TABLES,
    "merkle.md": merkle_tables.TABLES,
    "moe-measured.md": moe_tables.TABLES,
    "zk-measured.md": zk_tables.TABLES,
}
MARKED = re.compile(r"<!-- table: (?P<name>\w+) -->\n.*?<!-- end of table -->", re.DOTALL)


def sources(page: str, name: str) -> tuple[str, ...]:
    """The results that the table ``name`` of ``page`` is made of."""
    made = PAGES[page][name]
    return made[1] if isinstance(made, tuple) else (name,)


def filled(page: str, text: str) -> str:
    """``text`` of ``page`` with every marked table made anew. Raises KeyError for a mark without a table."""

    def fill(match: re.Match[str]) -> str:
        name = match["name"]
        made = PAGES[page][name]
        make = made[0] if isinstance(made, tuple) else made
        try:
            found = [read(source) for source in sources(page, name)]
        except FileNotFoundError:
            return match[0]
        lines = "\n".join(dict.fromkeys(origin(one) + "  " for one in found)).rstrip()
        return f"<!-- table: {name} -->\n{make(found)}\n\n{lines}\n<!-- end of table -->"

    return MARKED.sub(fill, text)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    for page in PAGES:
        path: Path = DOCS / page
        before = path.read_text(encoding="utf-8")
        after = filled(page, before)
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(path.relative_to(ROOT))
    gpu_tables.main([])


if __name__ == "__main__":
    main()
