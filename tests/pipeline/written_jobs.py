"""Jobs that tests write: a file with the code of the stages, the items and the job file in one folder."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["made_by", "write_job"]


def write_job(
    folder: Path,
    code: str,
    stages: str,
    items: int | Sequence[dict[str, Any]] = 6,
    *,
    job: str = "",
    devices: str = "cpu*1",
    more: str = "report: {html: false, trace: false}\n",
) -> Path:
    """Write ``stages.py``, ``rows.jsonl`` and ``job.yaml``; returns the job file.

    stages  the lines of that section
    items   rows, or how many rows of nothing but an id, which is i0, i1, ...
    job     more keys of the section job, such as "seed: 3, out: run"
    """
    rows = [{"id": f"i{at}"} for at in range(items)] if isinstance(items, int) else items
    (folder / "stages.py").write_text(code)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "job.yaml").write_text(
        f"version: 1\njob: {{name: t, inputs: {{jsonl: rows.jsonl}}, {job}}}\ndevices: {devices}\n"
        f"stages:\n{stages}{more}"
    )
    return folder / "job.yaml"


def made_by(run: Path) -> dict[str, bytes]:
    """What a run gave: its rows, and all files of its outputs."""
    files = [path for path in (run / "outputs").rglob("*") if path.is_file()]
    return {str(path.relative_to(run)): path.read_bytes() for path in [*files, run / "results.jsonl"]}
