"""The tables of docs/clients-measured.md, for docs_tables.py; some are made of several results."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

STRATEGIES = ("clients_small", "clients_larger", "clients_larger_100", "clients_batch8")
BATCH = 32  # rows in a step, unless a result says another number
StateRow = Mapping[str, Any]


def table(columns: Mapping[str, Callable[[StateRow], str]], rows: Iterable[StateRow], n_words: int) -> str:
    """Markdown: the first ``n_words`` columns to the left, numbers to the right."""
    marks = ["---"] * n_words + ["--:"] * (len(columns) - n_words)
    lines = [[cell(row) for cell in columns.values()] for row in rows]
    head = [f"| {' | '.join(columns)} |", f"|{'|'.join(marks)}|"]
    return "\n".join([*head, *(f"| {' | '.join(line)} |" for line in lines)])


def figure(name: str, digits: int) -> Callable[[StateRow], str]:
    return lambda row: "" if row.get(name) is None else f"{row[name]:,.{digits}f}"


def words(name: str) -> Callable[[StateRow], str]:
    return lambda row: str(row[name])


def strategies(pages: list[StateRow]) -> str:
    columns = {name: words(name) for name in ("model", "clients", "strategy", "ran")}
    columns |= {name: figure(name, 1) for name in ("cpu, ms", "clock, ms")}
    columns |= {name: figure(name, 2) for name in ("x cpu", "x clock", "first, s")}
    return table(columns, pages[0]["rows"], 4)


def auto(pages: list[StateRow]) -> str:
    """How far "auto" is from the best strategy picked by hand, and from serial training.

    By pairs of rounds, one right after the other, where a result has these; else by the least of all samples.
    """
    rows = []
    for page in pages:
        cases: dict[tuple, dict[str, StateRow]] = {}
        for row in page["rows"]:
            cases.setdefault((row["model"], row["clients"]), {})[row["strategy"]] = row
        pairs = {(pair["model"], pair["clients"]): pair for pair in page.get("pairs", ())}
        for (model, n), found in cases.items():
            by_hand = [row for name, row in found.items() if name not in ("plain torch", "auto")]
            if "auto" not in found or not by_hand:
                continue
            best, own = min(by_hand, key=lambda row: row["clock, ms"]), found["auto"]
            pair = pairs.get((model, n), {"auto / best": own["clock, ms"] / best["clock, ms"]})
            off = f"{100 * (pair['auto / best'] - 1):.0f} %"
            serial = found.get("serial", found["plain torch"])
            rows.append(
                {
                    "model": _model(page, model),
                    "clients": n,
                    "auto": own["ran"],
                    "best by hand": best["ran"],
                    "off the best by": f"the same, {off}" if own["ran"] == best["ran"] else off,
                    "x serial": serial["clock, ms"] / own["clock, ms"],
                }
            )
    columns = {name: words(name) for name in ("model", "clients", "auto", "best by hand", "off the best by")}
    columns["x serial"] = figure("x serial", 2)
    return table(columns, rows, 4)


def _model(page: StateRow, model: str) -> str:
    """The model, and what is not as in most results."""
    batch, cores = page.get("batch", BATCH), page.get("used_cores", page["machine"]["cores"])
    facts = [f"batch {batch}"] if batch != BATCH else []
    facts += ["one core"] if cores == 1 else []
    return ", ".join([model, *facts])


def tuning(pages: list[StateRow]) -> str:
    columns = {name: words(name) for name in ("model", "clients", "ran")}
    rows = [{**row, "model": _model(page, row["model"])} for page in pages for row in page.get("tuning", ())]
    columns |= {"tuning, s": figure("tuning, s", 2), "100 rounds, s": figure("100 rounds, s", 1)}
    columns["share"] = lambda row: f"{row['share, %']:.1f} %"
    return table(columns, rows, 3)


def digits(pages: list[StateRow]) -> str:
    columns = {"strategy": words("strategy"), "cpu per round, ms": figure("cpu per round, ms", 1)}
    columns |= {"x serial": figure("x serial", 1), "accuracy": figure("accuracy", 3)}
    columns |= {"apart from serial": words("apart from serial"), "first, s": figure("first, s", 2)}
    return table(columns, pages[0]["rows"], 1)


def cold_warm(pages: list[StateRow]) -> str:
    columns = {"model": words("model"), "strategy": words("strategy")}
    columns |= {"cold, ms": figure("cold, ms", 0), "warm, ms": figure("warm, ms", 1)}
    columns |= {"x serial, cold": figure("x serial, cold", 2), "x serial, warm": figure("x serial, warm", 2)}
    columns["apart"] = lambda row: f"{row['apart']:.0e}" if row["apart"] else "0"
    return table(columns, pages[0]["rows"], 2)


def first_rounds(pages: list[StateRow]) -> str:
    columns = {name: words(name) for name in ("model", "clients", "rounds", "auto")}
    columns |= {name: figure(name, 2) for name in ("plain, s", "auto, s", "auto / plain")}
    if any(row["from"] < row["to"] for row in pages[0]["rows"]):
        columns["spread"] = lambda row: f"{row['from']:.2f}-{row['to']:.2f}"
    columns["loaded"] = figure("loaded", 2)
    return table(columns, pages[0]["rows"], 4)


def profile(pages: list[StateRow]) -> str:
    columns = {"part": words("part"), "µs": figure("us", 0)}
    columns["share"] = lambda row: f"{100 * row['share']:.0f} %"
    return table(columns, pages[0]["rows"], 1)


def peers(pages: list[StateRow]) -> str:
    columns = {name: words(name) for name in ("model", "clients", "peer", "note")}
    columns["clock, ms"] = figure("clock, ms", 1)
    if any("to" in row for row in pages[0]["rows"]):
        columns["to"] = figure("to", 1)  # the slowest of several runs
    columns |= {"cpu, ms": figure("cpu, ms", 1), "times evenload": figure("times evenload", 2)}
    return table(columns, pages[0]["rows"], 4)


def convolutions(pages: list[StateRow]) -> str:
    columns = {"layer": words("layer"), "vectors of": lambda row: row.get("vectors", "samples")}
    columns |= {"used": lambda row: "yes" if row["used"] else "no"}
    kinds = ("forward", "inputs", "weights")
    columns |= {name: figure(name, 0) for kind in kinds for name in (kind, f"{kind}, torch")}
    return table(columns, pages[0]["rows"], 3)


def cifar(pages: list[StateRow]) -> str:
    columns = {name: words(name) for name in ("strategy", "ran")}
    columns |= {"cpu, ms a step": figure("cpu, ms", 2), "clock, ms a step": figure("clock, ms", 2)}
    columns |= {name: figure(name, 2) for name in ("x cpu", "x clock")} | {"GFLOPS": figure("GFLOPS", 0)}
    return table(columns, pages[0]["rows"], 2)


def adapters(pages: list[StateRow]) -> str:
    columns = {name: words(name) for name in ("tokens", "rank", "adapters")}
    columns |= {name: figure(name, 2) for name in ("serial, ms", "fused, ms", "times")}
    if any(row.get("least", 0) < row.get("most", 0) for row in pages[0]["rows"]):
        columns["spread"] = lambda row: f"{row['least']:.2f}-{row['most']:.2f}"
    elif "spread" in pages[0]["rows"][0]:  # as it was noted before
        columns["spread"] = words("spread")
    columns["pays from"] = lambda row: str(row["from"] or "never")
    return table(columns, pages[0]["rows"], 3)


ADAPTERS: Mapping[str, Any] = {"clients_adapters": adapters}
TABLES: Mapping[str, Any] = {
    "clients_peers": peers,
    "clients_auto": (auto, STRATEGIES),
    "clients_tuning": (tuning, STRATEGIES),
    "clients_small": strategies,
    "clients_larger": strategies,
    "clients_larger_100": strategies,
    "clients_batch8": strategies,
    "clients_convolutions": convolutions,
    "clients_cifar": cifar,
    "clients_digits": digits,
    "clients_cold_warm": cold_warm,
    "clients_first_rounds": first_rounds,
    "clients_profile": profile,
}
