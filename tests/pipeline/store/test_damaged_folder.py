"""A run folder in which chance has damaged a file: the run goes on and gives the same, or says what to do."""

import os
import random
from pathlib import Path

from pipeline.written_jobs import made_by, write_job

from evenload.errors import ConfigError
from evenload.pipeline import Pipeline

JOB = """\
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


def test_whatever_file_is_damaged_the_run_goes_on_or_says_how(tmp_path: Path) -> None:
    rng, run = random.Random(8), tmp_path / "run"
    job = write_job(tmp_path, STAGES, JOB, job="out: run", devices="cpu*2", more="")
    pipeline = Pipeline.from_yaml(job)
    whole = made_by(pipeline.run(backend="inline").folder)
    names = sorted({path.name for path in run.rglob("*") if path.is_file()} - {"lock"})
    for name in [*names, "journal.json", "events.jsonl", *rng.choices(names, k=3)]:
        found = sorted(run.rglob(name))
        if not found:  # of a session that was taken away since
            continue
        how = damage(rng.choice(found), rng)
        hint = ""
        try:
            pipeline.run(backend="inline")
        except ConfigError as error:
            hint = str(error.hint)
        if hint:
            assert "--fresh" in hint, how
            pipeline.run(backend="inline", fresh=True)
        assert made_by(run) == whole, how
        assert not os.path.lexists(run / "control"), how
