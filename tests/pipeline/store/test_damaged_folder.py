"""A run folder in which chance has damaged a file: the run goes on and gives the same, or says what to do."""

import os
import random
from pathlib import Path

import pytest

from evenload.errors import ConfigError
from evenload.pipeline import Pipeline

JOB = """\
version: 1
job: {name: damaged, inputs: {jsonl: rows.jsonl}, out: run}
devices: cpu*2
stages:
  - {name: split, target: 'stages.py:Split', expand: pages, outputs: {text: txt}}
  - {name: join, target: 'stages.py:Join', gather: pages, outputs: {all: txt}}
"""
STAGES = """\
from pathlib import Path

class Split:
    def __call__(self, inputs, item):
        return {"pages": [{"text": f"{item.id} {n} {item.seed}"} for n in range(item.index % 3)]}

class Join:
    def __call__(self, inputs, item):
        if item.index == 4:
            raise ValueError("four")
        return {"all": " ".join(Path(page["text"]).read_text() for page in inputs["pages"])}
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "stages.py").write_text(STAGES)
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"id": "i{n}"}}\n' for n in range(6)))
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path / "job.yaml"


def made(run: Path) -> dict[str, bytes]:
    """What a run gives: its rows and files."""
    files = [path for path in (run / "outputs").rglob("*") if path.is_file()]
    return {str(path.relative_to(run)): path.read_bytes() for path in [*files, run / "results.jsonl"]}


def damage(path: Path, rng: random.Random) -> str:
    """Remove, cut or overwrite a file, wholly or in one byte. Returns what was done."""
    content, how = path.read_bytes(), rng.choice(["removed", "cut", "a byte of", "overwritten"])
    at = rng.randrange(max(1, len(content)))
    if how == "removed":
        path.unlink()
    elif how == "cut":
        path.write_bytes(content[:at])
    elif how == "a byte of":
        path.write_bytes(content[:at] + rng.randbytes(1) + content[at + 1 :])
    else:
        path.write_bytes(rng.randbytes(rng.choice([1, 100])))
    return f"{how} {path.name}"


def test_whatever_file_is_damaged_the_run_goes_on_or_says_how(job: Path) -> None:
    rng, run = random.Random(8), job.parent / "run"
    whole = made(Pipeline.from_yaml(job).run(backend="inline").folder)
    names = sorted({path.name for path in run.rglob("*") if path.is_file()} - {"lock"})
    for name in [*names, "journal.json", "events.jsonl", *rng.choices(names, k=3)]:
        found = sorted(run.rglob(name))
        if not found:  # of a session that was taken away since
            continue
        how = damage(rng.choice(found), rng)
        hint = ""
        try:
            Pipeline.from_yaml(job).run(backend="inline")
        except ConfigError as error:
            hint = str(error.hint)
        if hint:
            assert "--fresh" in hint, how
            Pipeline.from_yaml(job).run(backend="inline", fresh=True)
        assert made(run) == whole, how
        assert not os.path.lexists(run / "control"), how
