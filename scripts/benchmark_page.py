"""The docs' page of benchmark results, made of ``benchmarks/results`` whenever the site is built.

A hook of mkdocs (see mkdocs.yml); ``python scripts/benchmark_page.py`` prints the page.
"""

import ast
import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
MOST_COLUMNS = 9
HEAD = """# Results of the benchmarks

Made from the files in `benchmarks/results`, which the named commands write. Each was measured on the machine
and the day that it names; `evenload bench` measures yours ([how](how-to/bench.md)).
"""


def on_files(files: Any, config: Any) -> Any:
    """Called by mkdocs: adds the page to the site."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "benchmarks.md", content=page()))
    return files


def on_page_content(html: str, **_: Any) -> str:
    """Called by mkdocs: leaves out click's own word for a default that there is not."""
    return html.replace("<code>Sentinel.UNSET</code>", "")


def page(folder: Path = RESULTS) -> str:
    return "\n".join([HEAD, *map(section, sorted(folder.glob("*.json")))])


def section(path: Path) -> str:
    """One result: what it is, where and when, the table. A file that is no result is named as such."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        rows, machine = found["rows"], dict(found["machine"])
        heads = list(dict(rows[0]))
    except (ValueError, KeyError, IndexError, TypeError):
        return f"## {path.stem}\n\n`{path.name}` is no result that this page can show.\n"
    machine = f"{machine.get('cpu', 'unknown processor')}, {machine.get('cores', '?')} cores"
    versions = found.get("versions", {})
    used = ", ".join(f"{name} {version}" for name, version in versions.items() if name in ("python", "torch"))
    lines = [
        f"## {path.stem}",
        "",
        _purpose(found.get("command", "")),
        "",
        f"`{found.get('command', 'no command')}` on {machine}; {used}; {found.get('date', 'no date')}",
        "",
    ]
    cells = [[_cell(row.get(head)) for head in heads] for row in rows]
    if len(heads) > MOST_COLUMNS and len(rows) < len(heads):
        # Wide and short: on its side it can be read.
        heads, cells = (
            ["", *(row[0] for row in cells)],
            [[head, *(row[c] for row in cells)] for c, head in enumerate(heads) if c],
        )
    lines += ["| " + " | ".join(_text(head) for head in heads) + " |"]
    lines += ["|" + "|".join("---" if i == 0 else "---:" for i in range(len(heads))) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in cells]
    return "\n".join(lines) + "\n"


def _purpose(command: str) -> str:
    """The first sentence of the benchmark's own description."""
    name = re.search(r"benchmarks/(\w+)\.py", command)
    source = ROOT / "benchmarks" / f"{name[1]}.py" if name else None
    if source is None or not source.is_file():
        return ""
    text = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    return _text(" ".join(text.split("\n\n")[0].split()))


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    return _text(str(value))


def _text(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("`", "'")


if __name__ == "__main__":
    print(page())
