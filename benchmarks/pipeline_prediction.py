"""Memory and time of a pipeline as predicted, beside what a run of it needs: tiny models of the real classes.

    python benchmarks/pipeline_prediction.py [--items 30]

memory   Predicted from config files alone, with activations traced on fake tensors; where a class cannot be
         traced, from a probe of one item of another picture. Measured: bytes of all weights of the stage, and
         the most bytes of other tensors that live at once while it works on an item.
time     Predicted by the planner from a probe of the first items: seconds for an item, seconds to load.
         Measured: the same stages over all items, one worker, from the first load to the last result. Both in
         CPU seconds of one thread, which other work on the machine does not change.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import record

from evenload.pipeline.job.job_file import load_spec
from evenload.pipeline.job.spec_stage import StageSpec
from evenload.pipeline.plan import Fit
from evenload.pipeline.planning.estimates.work_estimate import peak_tensor_bytes
from evenload.pipeline.planning.job_plan import build_job_problem
from evenload.pipeline.planning.modelled_fleet import FleetDevice
from evenload.pipeline.planning.planner import make_plan
from evenload.pipeline.problem import PlanDevice, PlanStage, Problem
from evenload.pipeline.stage import WHOLE, Item, ModelFolder, StageContext
from evenload.pipeline.stages import tiny
from evenload.pipeline.target import load_target, locate_target

JOB = """\
version: 1
job: {{name: tiny, inputs: {{jsonl: pairs.jsonl}}}}
stages:
  - name: encode
    kind: image_edit_encode
    model: &edit {{path: {models}/edit}}
    outputs: {{embeds: safetensors}}
  - name: denoise
    kind: image_edit_denoise
    model: *edit
    call: {{num_inference_steps: {steps}, true_cfg_scale: 1.0}}
    outputs: {{latents: safetensors}}
  - {{name: decode, kind: image_edit_decode, model: *edit, outputs: {{edited: png}}}}
  - {{name: score, kind: vlm_score, model: {{path: {models}/scorer}}, outputs: {{score: number}}}}
"""


class OnCpu:
    id = "cpu:0"
    torch = "cpu"


class Runs:
    """The stages, loaded in this process; what each hands on is kept by item."""

    def __init__(self, stages: tuple[StageSpec, ...], folder: Path, device: Any = OnCpu):
        self.stages, self.folder, self.device = stages, folder, device
        self.loaded: dict[str, Any] = {}
        self.load_s: dict[str, float] = {}

    def load(self, stage: StageSpec, fit: Fit = WHOLE) -> None:
        start = time.process_time()
        model = ModelFolder(stage.model.path, stage.model.dtype) if stage.model else None
        context = StageContext(stage.name, self.device, self.folder, model=model, fit=fit)
        self.loaded[stage.name] = load_target(locate_target(stage.target, self.folder))(
            context, **stage.params
        )
        self.load_s[stage.name] = time.process_time() - start

    def run(self, stage: StageSpec, inputs: dict[str, Any], item: Item) -> None:
        made = self.loaded[stage.name](inputs, item, **stage.call)
        inputs.update({name: self._kept(stage, name, value, item) for name, value in made.items()})

    def _kept(self, stage: StageSpec, name: str, value: Any, item: Item) -> Any:
        kind = stage.outputs.get(name, "number")
        if kind == "number":
            return value
        from evenload.pipeline.file_types import encode_artifact

        path = self.folder / f"{item.id}.{name}.{kind}"
        path.write_bytes(encode_artifact(value, kind))
        return str(path)

    def tensors_of(self, stage: StageSpec) -> list[Any]:
        import torch

        seen: list[Any] = []
        todo, known = [vars(self.loaded[stage.name])], set[int]()
        while todo:
            for value in todo.pop().values():
                if isinstance(value, torch.nn.Module):
                    seen += [*value.parameters(), *value.buffers()]
                elif hasattr(value, "components") and id(value) not in known:
                    known.add(id(value))
                    todo.append(value.components)
        return seen


def memory_rows(runs: Runs, folder: Path, spec: Any) -> list[dict]:
    asked = build_job_problem(spec, 1, folder, [FleetDevice("cpu:0", "cpu", None)], trace=True)
    inputs, probe = _row(folder, 0), _row(folder, 1)
    rows = []
    for stage, fact in zip(spec.stages, asked.stages, strict=True):
        runs.load(stage)
        weights = runs.tensors_of(stage)
        probed = peak_tensor_bytes(lambda stage=stage: runs.run(stage, probe[0], probe[1]), weights)
        active = peak_tensor_bytes(lambda stage=stage: runs.run(stage, inputs[0], inputs[1]), weights)
        held = sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in weights}.values())
        predicted = fact.activation_bytes if fact.activation_from == "traced" else probed
        total, expected = held + active, (fact.weight_bytes or 0) + predicted
        source = fact.activation_from if fact.activation_from == "traced" else "probe"
        row = {"what": "memory", "stage": stage.name, "kind": stage.kind, "from": source}
        row |= {"predicted": expected / 2**10, "measured": total / 2**10, "unit": "KiB"}
        rows.append(row | {"off": expected / total - 1})
    return rows


def _row(folder: Path, number: int) -> tuple[dict[str, Any], Item]:
    name = f"p{number}"
    path = folder / f"{name}.png"
    tiny.picture(number).save(path)
    return {"path": str(path), "instruction": "make the sky red"}, Item(number, name, number)


def time_rows(runs: Runs, folder: Path, spec: Any, n_items: int) -> list[dict]:
    """Stage after stage, as one worker does it: first a probe of two items, then all of them."""
    rows_in = [_row(folder, number) for number in range(n_items)]
    probe = [_row(folder, 100 + number) for number in range(3)]
    planned = []
    for stage in spec.stages:
        runs.load(stage)
        _, *seconds = [_seconds(runs, stage, inputs, item) for inputs, item in probe]  # the first warms up
        planned.append(PlanStage(stage.name, fmean(seconds), runs.load_s[stage.name], fits=("whole",)))
    plan = make_plan(Problem(tuple(planned), (PlanDevice("cpu:0"),), n_items), "single")
    rows, start = [], time.process_time()
    for stage, known in zip(spec.stages, planned, strict=True):
        begun = time.process_time()
        runs.load(stage)
        for inputs, item in rows_in:
            runs.run(stage, inputs, item)
        took = time.process_time() - begun
        rows.append(_time_row(stage.name, n_items, known.load_s + n_items * known.item_s, took))
    assert plan.makespan_s is not None
    return [*rows, _time_row("all", n_items, plan.makespan_s, time.process_time() - start)]


def _time_row(stage: str, n_items: int, predicted: float, measured: float) -> dict:
    row = {"what": "time", "stage": stage, "kind": f"{n_items} items", "from": "probe"}
    row |= {"predicted": predicted, "measured": measured, "unit": "CPU s"}
    return row | {"off": predicted / measured - 1}


def _seconds(runs: Runs, stage: StageSpec, inputs: dict[str, Any], item: Item) -> float:
    start = time.process_time()
    runs.run(stage, inputs, item)
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", type=int, default=30)
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tiny.build(folder / "models")
        (folder / "pairs.jsonl").write_text(
            '{"id": "p0", "path": "p0.png", "instruction": "make the sky red"}\n'
        )
        job = folder / "job.yaml"
        job.write_text(JOB.format(models="models", steps=options.steps))
        spec = load_spec(job)
        runs = Runs(spec.stages, folder)
        rows = memory_rows(runs, folder, spec) + time_rows(runs, folder, spec, options.items)
    record.record("pipeline_prediction", rows, items=options.items, steps=options.steps)


if __name__ == "__main__":
    main()
