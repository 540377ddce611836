"""The docs' page of benchmark results, made of ``benchmarks/results`` whenever the site is built.

One of mkdocs' hooks (see mkdocs.yml); ``python scripts/benchmark_page.py`` prints the page. Each result is
named by the question that it answers (benchmarks/questions.py); a plot does that, the table is folded below.
"""

import argparse
import ast
import importlib.util
import json
import math
import re
import sys
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
MOST_COLUMNS = 9
OURS = re.compile(r"\b(evenload|EvenBatches|auto|exact|measured)\b")
HEAD = """# Results of the benchmarks

After this page you know what was measured, and how much of it concerns you. Choose a door:
{doors}.

Made from the files in `benchmarks/results`, which the named commands write. Each was measured on the machine
and the day that it names; `evenload bench` measures yours ([how](how-to/bench.md)).
Blue is evenload beside others.
"""


def _module(path: Path) -> Any:
    """A module that is no part of a package, by its file."""
    spec = importlib.util.spec_from_file_location(f"evenload_docs_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


questions = _module(ROOT / "benchmarks" / "questions.py")


def on_files(files: Any, config: Any) -> Any:
    """Called by mkdocs: adds the page to the site."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "benchmarks.md", content=page()))
    return files


def page(folder: Path = RESULTS) -> str:
    """The whole page. Results that no question names stand at its end, under their own names."""
    paths = {path.stem: path for path in sorted(folder.glob("*.json"))}
    parts, doors = [], []
    for door in (*questions.DOORS, "Others"):
        asked = [name for name, one in questions.QUESTIONS.items() if one.door == door and name in paths]
        names = asked if door != "Others" else [name for name in paths if name not in questions.QUESTIONS]
        if names:
            doors.append(f"[{door}](#{door.lower().replace(' ', '-')})")
            parts += [f"## {door}\n", *(section(paths[name]) for name in names)]
    foot = "Next: [measure your machine](how-to/bench.md)."
    return "\n".join([HEAD.format(doors=", ".join(doors)), *parts, foot, ""])


def section(path: Path) -> str:
    """One result: its question, plot and table, where and when. What is no result is named as such."""
    question = questions.QUESTIONS.get(path.stem)
    head = f"### {question.asks if question else path.stem} {{#{path.stem}}}\n"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        rows, machine = found["rows"], dict(found["machine"])
        heads = list(dict(rows[0]))
    except (ValueError, KeyError, IndexError, TypeError):
        return f"{head}\n`{path.name}` is no result that this page can show.\n"
    machine = f"{machine.get('cpu', 'unknown processor')}, {machine.get('cores', '?')} cores"
    versions = found.get("versions", {})
    used = ", ".join(f"{name} {version}" for name, version in versions.items() if name in ("python", "torch"))
    lines = [head, *(_plot(question, rows) if question else ())]
    folded = "One row, and how it was" if len(rows) == 1 else f"{len(rows)} rows, and how they were"
    lines += [f'<details markdown="1"><summary>{folded} measured</summary>', ""]
    lines += [_purpose(found.get("command", "")), ""]
    lines += [
        f"`{found.get('command', 'no command')}` on {machine}; {used}; {found.get('date', 'no date')}",
        "",
    ]
    return "\n".join([*lines, *_table(heads, rows), "", "</details>", ""])


def _table(heads: list[str], rows: list[dict[str, Any]]) -> list[str]:
    cells = [[_cell(row.get(head)) for head in heads] for row in rows]
    if len(heads) > MOST_COLUMNS and len(rows) < len(heads):
        # Wide and short: on its side it can be read.
        heads, cells = (
            ["", *(row[0] for row in cells)],
            [[head, *(row[c] for row in cells)] for c, head in enumerate(heads) if c],
        )
    lines = ["| " + " | ".join(_text(head) for head in heads) + " |"]
    lines += ["|" + "|".join("---" if i == 0 else "---:" for i in range(len(heads))) + "|"]
    return lines + ["| " + " | ".join(row) + " |" for row in cells]


def _plot(question: Any, rows: list[dict[str, Any]]) -> list[str]:
    """A bar for each line of the answer, in HTML: it can be read on a phone, copied, and read aloud."""
    bars = question.bars(rows)
    sizes = [abs(value) for _, value in bars]
    most, least = max(sizes, default=0.0), min((size for size in sizes if size > 0), default=1.0)
    is_log = question.plot.is_log and most > least

    def width(value: float) -> float:
        size = abs(value)
        if not size or not most:
            return 0.0
        return 4 + 96 * math.log(size / least) / math.log(most / least) if is_log else 100 * size / most

    lines = [
        f'<div class="bar"><span class="name">{escape(name)}</span><span class="track">'
        f'<i class="{_kind(name)}" style="width: {width(value):.1f}%"></i></span>'
        f'<span class="value">{_figure(value)}</span></div>'
        for name, value in bars
    ]
    better = "less is better" if question.plot.is_less_better else "more is better"
    said = f"{escape(question.plot.unit)}; {better}{'; logarithmic' if is_log else ''}"
    return [
        '<div class="plot">',
        f'<p class="unit">{said}</p>',
        *lines,
        "</div>",
        "",
    ]


def _kind(name: str) -> str:
    return "ours" if OURS.search(name) else "theirs"


def _purpose(command: str) -> str:
    """The first sentence of the benchmark's own description."""
    name = re.search(r"benchmarks/([\w/]+)\.py", command)
    source = ROOT / "benchmarks" / f"{name[1]}.py" if name else None
    if source is None or not source.is_file():
        return ""
    text = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    return _text(" ".join(text.split("\n\n")[0].split()))


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    return _text(str(value))


def _text(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("`", "'")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    print(page())
