"""Tests values on their way through a run. The oracle is a plain loop over the stages' own code."""

import json
from pathlib import Path
from typing import Any

import pytest
from pipeline.written_jobs import write_job

from evenload.errors import SpecError
from evenload.pipeline import Pipeline

STAGES = """
from pathlib import Path

import numpy as np

class Find:
    def __call__(self, inputs, item):
        n = inputs["n"]
        path = f"{inputs['folder']}/{item.id}.mp4"
        with open(path, "wb") as file:
            file.write(b"clip" * n)
        return {
            "boxes": [[n, 2.5]] * n, "label": None, "embedding": np.full(2048, n / 3), "raw": b"\\0" * n,
            "clip": path, "where": {"x": [n, {"y": None}]},
        }

class Use:
    def __init__(self, context): self.n_calls = 0
    def __call__(self, inputs, item):
        inputs["boxes"].append("own")
        inputs["where"]["x"][1]["y"] = "own"
        self.n_calls += 1
        if item.id == "b" and self.n_calls == 1:
            raise OSError("once")
        clip, raw = (Path(inputs[name]).read_bytes() for name in ("clip", "raw"))
        mean = sum(inputs["embedding"])
        return {"n_boxes": len(inputs["boxes"]), "sizes": (len(clip), len(raw)), "mean": mean}
"""
JOB = """\
  - name: find
    target: "stages.py:Find"
    outputs: {boxes: json, label: json, embedding: json, where: json, raw: bytes, clip: file.mp4}
  - {name: use, target: "stages.py:Use", outputs: {sizes: json}, when: label == null}
errors: {retries: 1}
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "made").mkdir()
    made = str(tmp_path / "made")
    return write_job(
        tmp_path, STAGES, JOB, [{"id": name, "n": n, "folder": made} for n, name in enumerate("bac", 2)]
    )


def expected(n: int) -> dict[str, Any]:
    """What a loop gives: each stage called once, on values of its own."""
    boxes, mean = [[n, 2.5]] * n, sum([n / 3] * 2048)
    return {
        "boxes": boxes, "label": None, "embedding": [n / 3] * 2048, "where": {"x": [n, {"y": None}]},
        "n_boxes": n + 1, "sizes": [4 * n, n], "mean": mean,
    }  # fmt: skip


def test_lists_dicts_bytes_and_files_come_through(job: Path) -> None:
    for _ in range(2):  # the second takes all of it from the folder of the first
        result = Pipeline.from_yaml(job).run(out=job.parent / "run")
        assert result.status == "done", result.failures
        rows = [json.loads(line) for line in (result.folder / "results.jsonl").read_text().splitlines()]
        for row in rows:
            n, outputs = row["inputs"]["n"], row["outputs"]
            clip, raw = outputs.pop("clip"), outputs.pop("raw")
            assert outputs == expected(n)
            assert clip == f"outputs/find/{row['id']}.clip.mp4"
            assert raw == f"outputs/find/{row['id']}.raw.bytes"
            assert (result.folder / clip).read_bytes() == b"clip" * n
            assert (result.folder / raw).read_bytes() == b"\0" * n
    assert result.n_restored > 0


def test_a_type_that_is_none_is_refused(job: Path) -> None:
    text = job.read_text()
    for wrong in ("gif", "file.", "file.a/b", "png.mp4"):
        job.write_text(text.replace("clip: file.mp4", f"clip: {wrong}"))
        with pytest.raises(SpecError, match=r"outputs\.clip"):
            Pipeline.from_yaml(job)
