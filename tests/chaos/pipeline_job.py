"""A pipeline's job as a program: two stages with files between them, in a run folder that is gone on with."""

import json
import os
from pathlib import Path
from typing import Any

from chaos.evidence import SEED, note
from chaos.programs import Program, digest, value_of
from chaos.work import BESIDE, misbehave_if_told

STAGES = """
import numpy as np
from chaos.pipeline_job import done_in_stage
from chaos.evidence import note
from evenload.pipeline import read_picture

class Draw:
    def __call__(self, inputs, item):
        value = done_in_stage(0, item.index)
        picture = np.full((12, 10, 3), value[1] % 200 + item.index % 50, dtype=np.uint8)
        return {"drawn": picture, "number": value[1]}

class Weigh:
    def __call__(self, inputs, item):
        value = done_in_stage(100, item.index)
        pixels = read_picture(inputs["drawn"])
        if abs(float(pixels.mean()) * 255 - (inputs["number"] % 200 + item.index % 50)) > 0.5:
            note("input", 0, item.index, "the picture of the first stage")
        return {"weight": value[1], "text": f"{item.id} weighs {value[1]}"}
"""
JOB = """\
version: 1
job: {name: chaos, inputs: {jsonl: rows.jsonl}, seed: 3, out: run}
devices: cpu*N_DEVICES
schedule: {mode: MODE}
stages:
  - {name: draw, target: 'stages.py:Draw', outputs: {drawn: png}}
  - {name: weigh, target: 'stages.py:Weigh', outputs: {text: txt}}
report: {html: false, trace: false}
"""


def done_in_stage(number: int, item: int) -> Any:
    """What a stage does with an item, besides its outputs."""
    note("began", number, item)
    worker = os.getpid()
    misbehave_if_told(number, item)
    if os.getpid() != worker:
        return (item, -1)
    note("ended", number, item)
    return value_of(int(os.environ[SEED]), number, item, 0)


def run_job(program: Program, folder: Path) -> None:
    """Run the job, or go on with it; write down what its rows and files say."""
    from evenload.pipeline import Pipeline

    (phase,) = program.phases
    write_job(folder, phase.n, program)
    note("run", 0)
    result = Pipeline.from_yaml(folder / "job.yaml").run()
    if result.status == "interrupted":
        raise KeyboardInterrupt  # the next life goes on with it
    for line in (folder / "run" / "results.jsonl").read_text().splitlines():
        note("got", 0, *row(folder / "run", json.loads(line)))
    note("over", 0, more=f"as told {result.status}")
    for path in (folder / "run").rglob("*.tmp"):
        note("left", more=f"a half-written file {path.name}")
    note("alive", 0)


def row(run: Path, told: dict[str, Any]) -> tuple[int, str]:
    """An item and what became of it: its value by number, picture and text, or its error."""
    item = told["index"]
    if told["status"] != "done":
        return item, f"{(told['error'] or {}).get('type')}: {told['status']}"
    outputs = told["outputs"]
    text = (run / outputs["text"]).read_text()
    is_whole = (
        text == f"{told['id']} weighs {outputs['weight']}" and (run / outputs["drawn"]).stat().st_size > 50
    )
    return item, f"= {digest((item, outputs['weight']))}" if is_whole else f"= damaged {text[:50]}"


def write_job(folder: Path, n: int, program: Program) -> None:
    mode = ("auto", "data_parallel", "stage_parallel")[program.seed % 3]
    if not (folder / "job.yaml").exists():
        (folder / "stages.py").write_text(STAGES)
        (folder / "rows.jsonl").write_text("".join(f'{{"id": "item {at}"}}\n' for at in range(n)))
        text = JOB.replace("N_DEVICES", str(program.n_devices)).replace("MODE", mode)
        (folder / "job.yaml").write_text(text)


def expected(seed: int, item: int) -> str:
    """What the row of an item that is done says."""
    return digest(value_of(seed, BESIDE, item, 0))
