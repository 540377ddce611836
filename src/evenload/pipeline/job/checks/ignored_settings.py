"""Find settings of a job that do nothing, or not what their writer expects; they are noted, not refused."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evenload.pipeline.job.spec import JobSpec, StageSpec

from evenload.errors import quoted
from evenload.pipeline.problem import LOSSY


def settings_without_effect(spec: "JobSpec") -> list[str]:
    """Return one sentence for each setting without effect."""
    notes = [note for stage in spec.stages for note in _of_stage(stage)]
    if spec.report.sort is not None and not any(spec.report.sort in s.outputs for s in spec.stages):
        declared = ", ".join(name for stage in spec.stages for name in stage.outputs) or "none"
        notes.append(f"report.sort: {quoted(spec.report.sort)} is no declared output; declared: {declared}")
    return [*notes, *_untaken(spec)]


def _untaken(spec: "JobSpec") -> Iterator[str]:
    """Yield stages that make nothing but arrays and tensors, which no stage takes."""
    for number in sorted(spec.graph.ends):
        stage, is_last = spec.stages[number], number == len(spec.stages) - 1
        if not is_last and stage.outputs and set(stage.outputs.values()) <= {"npy", "safetensors"}:
            yield f"stages.{stage.name}: no stage needs it; {', '.join(stage.outputs)} is only saved"


def _of_stage(stage: "StageSpec") -> list[str]:
    notes = []
    scale = stage.call.get("true_cfg_scale")
    if isinstance(scale, int | float) and scale > 1 and stage.call.get("negative_prompt") is None:
        notes.append(
            f"stages.{stage.name}.call.true_cfg_scale: {scale} does nothing without a negative_prompt; "
            'give one, if only " " (each step then computes twice)'
        )
    if stage.batch > 1 and stage.n_in_flight > 1:
        whose = "" if stage.in_flight else " (params.concurrency)"
        notes.append(
            f"stages.{stage.name}.batch: {stage.batch} does nothing: each item goes by itself, "
            f"{stage.n_in_flight} under way at once{whose}; write in_flight: {stage.n_in_flight} and no batch"
        )
    elif stage.batch > 1:
        notes.append(
            f"stages.{stage.name}.batch: {stage.batch} items in one call may change the last bits of results"
        )
    waits = [f"{name}" for name in ("max_wait_s", "batch_key") if getattr(stage, name)]
    if waits and stage.batch == 1:
        notes.append(f"stages.{stage.name}.{waits[0]}: does nothing with batch: 1; say how many go together")
    if stage.python is not None and (stage.in_flight or 1) > 1:
        notes.append(f"stages.{stage.name}.in_flight: does nothing with python, whose items go one by one")
    if stage.batch > 1 and not stage.repeatable:
        notes.append(f"stages.{stage.name}.batch: does nothing with repeatable: false, whose items run alone")
    if stage.model is None and any(fit in LOSSY for fit in stage.fit):
        notes.append(f"stages.{stage.name}.fit: nothing is known of its weights without model")
    return notes
