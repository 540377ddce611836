"""The tables of docs/clients-measured.md that are worked out of several results."""

import pytest
from loaded_programs import loaded


@pytest.fixture(scope="module")
def tables():
    with loaded("benchmarks", "docs_tables", "markdown_table") as (made, writer):
        yield {"auto": lambda pages: writer.written(made.CLIENTS["clients_auto"], pages)}


def page_of(took, **facts):
    rows = [
        {"model": "m", "clients": 4, "strategy": name, "ran": ran, "clock, ms": ms}
        for name, (ran, ms) in took.items()
    ]
    return {"rows": rows, "machine": {"cores": 2}, **facts}


def test_how_far_auto_is_from_the_best_by_hand(tables):
    took = {"plain torch": ("", 5.0), "serial": ("eager", 8.0), "fused:4": ("fused:4", 2.0)}
    took |= {"fused:8": ("fused:8", 4.0), "auto": ("fused:8", 2.2)}
    line = tables["auto"]([page_of(took)]).splitlines()[-1]
    assert line == "| m | 4 | fused:8 | fused:4 | 10 % | 3.64 |"
    pair = {"model": "m", "clients": 4, "auto / best": 1.021}
    line = tables["auto"]([page_of(took, pairs=[pair], batch=8, used_cores=1)]).splitlines()[-1]
    assert line == "| m, batch 8, one core | 4 | fused:8 | fused:4 | 2 % | 3.64 |"


def test_the_same_strategy_is_said_to_be_the_same(tables):
    took = {"plain torch": ("", 5.0), "fused:4": ("fused:4", 2.0), "auto": ("fused:4", 2.2)}
    lines = tables["auto"]([page_of(took), page_of({"plain torch": ("", 5.0)})]).splitlines()
    assert lines[2:] == ["| m | 4 | fused:4 | fused:4 | the same, 10 % | 2.27 |"]
