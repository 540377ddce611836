"""Rows of those tables of the docs whose lines are not the rows of a result: chosen, joined or worked out."""

from collections.abc import Mapping, Sequence
from typing import Any

from result_files import Page

Row = Mapping[str, Any]
BATCH = 32  # rows in a client's step, unless a result says another number
STAGE_FLEETS = {"even": "4 equal", "unequal": "6 at 1, 1, 1, ½, ½, ¼"}
PLANNED_FLEETS = {"5 + one at half": "5 + one at ½", "16: 8, 4 at 1/2, 4 at 1/4": "16 at 1, ½, ¼"}
WORKLOADS = {"big": "*big*", "8 equal: 60, 1.0": "60 on 8 equal devices"}


def grouped(rows: Sequence[Row], keys: Sequence[str], column: str, *values: str) -> list[dict[str, Any]]:
    """A row for each of ``keys``: of each row with these the ``values``, called ``COLUMN VALUE``."""
    found: dict[tuple, dict[str, Any]] = {}
    for row in rows:
        one = found.setdefault(tuple(row[key] for key in keys), dict(row))
        one |= {f"{row[column]} {name}": row[name] for name in values}
    return list(found.values())


def bold_policies(pages: Sequence[Page]) -> list[Row]:
    """Figures as text, those of "measured" in bold."""
    mark = {"measured": "**"}
    return [
        {key: value if key == "told" else f"{m}{value if isinstance(value, str) else f'{value:.2f}'}{m}"
         for key, value in row.items()}
        for row in pages[0]["rows"] for m in [mark.get(row["policy"], "")]
    ]  # fmt: skip


def learned(pages: Sequence[Page]) -> list[Row]:
    rows = []
    for row in pages[0]["rows"]:
        noise, is_told = row["noise"], not isinstance(row["noise"], str)
        said = (f"{100 * noise:.0f} %" if noise else "none") if is_told else "no feature tells anything"
        mark = "**" if is_told else ""
        rows.append({**row, "items": WORKLOADS[row["workload"]], "said": said, "mark": mark})
    return rows


def slowed(pages: Sequence[Page]) -> list[Row]:
    (row,) = pages[0]["slows_down"]
    return [{"slower_from_step": 30, **row}]


def stage_runs(pages: Sequence[Page]) -> list[Row]:
    rows = [
        {**row, "in": STAGE_FLEETS[row["fleet"]]} for row in pages[0]["rows"] if row["fleet"] in STAGE_FLEETS
    ]
    return grouped(rows, ("fleet", "draw"), "way", "ratio")


def stage_columns(pages: Sequence[Page]) -> str:
    """A column for each way to run, the first in bold."""
    first, *others = dict.fromkeys(row["way"] for row in pages[0]["rows"] if row["fleet"] in STAGE_FLEETS)
    cells = [f"{first} = **{{{first} ratio:.3f}}**", *(f"{way} = {way} ratio :.3f" for way in others)]
    return " | ".join(["fleet = in", "items", "bound = {bound_s:.1f} s", *cells])


def idle_stages(pages: Sequence[Page]) -> str:
    own = next(row for row in pages[0]["rows"] if row["fleet"] == "overhead")
    return f"With stages that do nothing, an item and a stage take {own['wall_s']:.2f} ms on one worker."


def chosen_plans(pages: Sequence[Page]) -> list[Row]:
    """The fleets that were chosen, without those of chance."""
    return [
        {**row, "named": PLANNED_FLEETS.get(row["fleet"], row["fleet"])}
        for row in pages[0]["rows"]
        if row["items"] in (50, 250) and not row["fleet"].startswith("random")
    ]


def worst_plans(pages: Sequence[Page]) -> str:
    rows = pages[0]["rows"]
    few, many = ([row["ratio"] for row in rows if (row["items"] >= 100) == big] for big in (False, True))
    return (
        f"Worst over all {len(rows)} rows, random fleets included: **{max(many):.3f}** from 100 items "
        f"(mean {sum(many) / len(many):.3f}), **{max(few):.3f}** at fewer."
    )


def predicted(pages: Sequence[Page]) -> list[Row]:
    """Memory by stage, and the time of all stages."""
    rows = []
    for row in pages[0]["rows"]:
        is_memory, source = row["what"] == "memory", row["from"].replace("traced", "trace")
        if not is_memory and row["stage"] != "all":
            continue
        off = f"{100 * row['off']:+.1f} %".replace("-", "−")
        form = f"{{:.{1 if is_memory else 2}f}} {row['unit']}".format
        stage = row["stage"] if is_memory else f"all, {row['kind']}"
        both = {"predicted": form(row["predicted"]), "measured": form(row["measured"])}
        both["off"] = "0.0 %" if off[1:] == "0.0 %" else off
        rows.append({"stage": stage, "by": source if is_memory else f"time, {source}", **both})
    return rows


def circuits(pages: Sequence[Page]) -> list[Row]:
    """The rows of several results; of two for one circuit, the later one's."""
    return list({row["circuit"]: row for page in pages for row in page["rows"]}.values())


def trees(pages: Sequence[Page], leaves: int) -> list[Row]:
    """A row for each scheme with so many leaves; WGSL under that name."""
    rows = [{**row, "by": row["by"].partition(",")[0]} for row in pages[0]["rows"] if row["leaves"] == leaves]
    found = grouped(rows, ("scheme",), "by", "cpu_ms", "wall_ms")
    for row in found:
        peer = row.get("hashlib cpu_ms")
        row |= {f"{name} faster": peer / row[f"{name} cpu_ms"]
                for name in ("AVX-512", "AVX2", "WGSL") if f"{name} cpu_ms" in row}  # fmt: skip
    return found


def auto(pages: Sequence[Page]) -> list[Row]:
    """How far "auto" is from the best strategy picked by hand, and from serial training.

    By pairs of rounds, one right after the other, where a result has these; else by the least of all samples.
    """
    rows = []
    for page in pages:
        cases: dict[tuple, dict[str, Row]] = {}
        for row in page["rows"]:
            cases.setdefault((row["model"], row["clients"]), {})[row["strategy"]] = row
        pairs = {(pair["model"], pair["clients"]): pair for pair in page.get("pairs", ())}
        for (model, n), found in cases.items():
            by_hand = [row for name, row in found.items() if name not in ("plain torch", "auto")]
            if "auto" not in found or not by_hand:
                continue
            best, own = min(by_hand, key=lambda row: row["clock, ms"]), found["auto"]
            pair = pairs.get((model, n), {"auto / best": own["clock, ms"] / best["clock, ms"]})
            same = "the same, " if own["ran"] == best["ran"] else ""
            serial = found.get("serial", found["plain torch"])["clock, ms"]
            off = f"{same}{100 * (pair['auto / best'] - 1):.0f} %"
            one = {"model": _model(page, model), "clients": n, "auto": own["ran"], "off the best by": off}
            rows.append({**one, "best by hand": best["ran"], "x serial": serial / own["clock, ms"]})
    return rows


def tuning(pages: Sequence[Page]) -> list[Row]:
    return [{**row, "model": _model(page, row["model"])} for page in pages for row in page.get("tuning", ())]


def _model(page: Page, model: str) -> str:
    """The model, and what is not as in most results."""
    batch, cores = page.get("batch", BATCH), page.get("used_cores", page["machine"]["cores"])
    facts = [f"batch {batch}"] if batch != BATCH else []
    return ", ".join([model, *facts, *(["one core"] if cores == 1 else [])])


def front(pages: Sequence[Page]) -> list[Row]:
    """A figure of each door, beside the one that users have without evenload."""
    simulated, stages, training, routing, clients = (page["rows"] for page in pages)

    def one(rows: Sequence[Row], **wanted: Any) -> Row:
        return next(row for row in rows if wanted.items() <= row.items())

    fleet = {"fleet": "unequal"}
    route = one(routing, instance="288 on 16, decode")
    dealt = [one(simulated, policy=name)["mid"] for name in ("measured", "pull 1", "static, score")]
    stage_x = [one(stages, **fleet, way=way)["ratio"] for way in ("evenload", "Ray Data", "replicas")]
    ways = ("EvenBatches", "DDP")
    step_x = [one(training, fleet="1:1:2:4", method=way)["x_bound"] for way in ways]
    plain = [row for row in clients if (row["clients"], row["peer"]) == (20, "plain torch")]
    least, *_, most = sorted(row["times evenload"] for row in plain)
    lines = [
        ("300 uneven items on devices 1 : 2 : 4 : 8, share of the best possible", f"{dealt[0]:.2f}",
         f"{dealt[1]:.2f} a pull queue, {dealt[2]:.2f} a split by data sheet", "simulated"),
        ("100 items through two models on six unequal devices, time over the bound", f"{stage_x[0]:.2f}",
         f"{stage_x[1]:.2f} Ray Data, {stage_x[2]:.2f} replicas with equal shares",
         "real processes that sleep"),
        ("a training step on ranks 1 : 1 : 2 : 4, time over the bound", f"{step_x[0]:.2f}",
         f"{step_x[1]:.2f} DDP", "real ranks that sleep"),
        ("a batch over 288 copies of experts on 16 GPUs, routed at the optimum",
         f"{route['one layer us']:.1f} µs", f"{route['HiGHS us/layer']:,.0f} µs HiGHS", "on this CPU"),
        (f"20 models trained together, times as fast as one by one: {len(plain)} kinds",
         f"{least:.1f} to {most:.0f}", "1 plain torch", "on this CPU"),
    ]  # fmt: skip
    return [dict(zip(("what", "ours", "others", "how"), line, strict=True)) for line in lines]
