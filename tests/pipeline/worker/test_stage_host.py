"""The garbage collector looks for what was dropped only where stages took enough to make that worth it."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from pipeline.written_jobs import write_job

from evenload.pipeline import Pipeline
from evenload.pipeline.worker import stage_host

STAGE = """
class Holds:
    def __init__(self, context, *, n_bytes):
        self.itself = self  # so that only the garbage collector frees it
        self.taken = b"1" * n_bytes
    def __call__(self, inputs, item): return {"n": len(self.taken)}
    def __del__(self): open("freed", "w").close()
"""
WORTH_BYTES = 64 << 20


@pytest.fixture(autouse=True)
def collector_off(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(stage_host, "WORTH_COLLECTING_BYTES", WORTH_BYTES)
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("n_bytes", [1, 3 * WORTH_BYTES])
def test_a_dropped_stage_is_collected_for_what_it_took_not_for_what_the_program_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_bytes: int
) -> None:
    of_the_program = b"1" * (3 * WORTH_BYTES)
    monkeypatch.chdir(tmp_path)
    stage = f"  - {{name: hold, target: 'stages.py:Holds', params: {{n_bytes: {n_bytes}}}}}\n"
    job = write_job(tmp_path, STAGE, stage, 1)
    result = Pipeline.from_yaml(job).run(backend="inline")
    assert not result.failures
    assert Path("freed").exists() == (n_bytes > WORTH_BYTES)
    assert len(of_the_program) == 3 * WORTH_BYTES
    gc.collect()
    assert Path("freed").exists()
