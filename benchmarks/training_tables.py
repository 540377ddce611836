"""The tables of docs/how-to/train-on-unequal-gpus.md, for docs_tables.py."""

from collections.abc import Sequence

from policy_tables import markdown
from result_files import Page

__all__ = ["TABLES"]

METHODS = {"DDP": "DDP", "DDP, shares by hand": "by hand", "EvenBatches": "`EvenBatches`"}


def steps(pages: Sequence[Page]) -> str:
    """A step over its bound, by fleet and method, and how far losses are from one process's."""
    rows = pages[0]["rows"]
    found = {(row["fleet"], row["method"]): row for row in rows}
    lines = []
    for fleet in dict.fromkeys(row["fleet"] for row in rows):
        some = [found[fleet, method] for method in METHODS]
        differs = [f"{row['loss_differs']:.0e}" for row in some[1:]]
        lines.append([fleet, *(f"{row['x_bound']:.2f}" for row in some), *differs])
    columns = [*METHODS.values(), *(f"loss differs, {name}" for name in list(METHODS.values())[1:])]
    return markdown(["speeds of the ranks", *columns], lines)


def slows(pages: Sequence[Page]) -> str:
    """What happens when one of two equal ranks falls to half its speed."""
    (row,) = pages[0]["slows_down"]
    columns = {
        "x_bound_before": "x bound before",
        "steps_until_shares_follow": "steps until shares follow",
        "x_bound_after": "x bound after",
        "shares_before": "its share before",
        "shares_after": "and after",
        "largest_change_after": "largest change after that",
    }
    cells = [f"{row[key]:.2f}" if isinstance(row[key], float) else str(row[key]) for key in columns]
    return markdown(
        ["", *columns.values()], [[f"half the speed from step {row.get('slower_from_step', 30)} on", *cells]]
    )


TABLES = {
    "unequal_training": steps,
    "unequal_training_slows": (slows, ("unequal_training",)),
}
