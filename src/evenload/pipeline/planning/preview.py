"""What a run would do, said before it does anything: items, stages, devices, bytes of weights as stored."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evenload._memory_sizes import gib_text

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """A stage of the preview.

    weight_bytes  of each copy, as stored; None if the stage names no safetensors files
    devices       those that it may run on, as the job names them; "" for all
    needs         stages that it takes from, where they are not all one after the other
    """

    name: str
    target: str
    weight_bytes: int | None
    outputs: dict[str, str]
    devices: str = ""
    needs: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class PlannedDevice:
    """A device of the preview."""

    id: str
    name: str
    score: float
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class Preview:
    """The stages of a job, each with one copy on each device, before anything is planned.

    upload where results are copied to; "" if nowhere
    kept   what is there already of each stage, and why the rest is not; [] if nothing is
    reuse  the same in words
    """

    job: str
    n_items: int
    groups: dict[str, int]
    seed: int
    policy: str
    backend: str
    devices: tuple[PlannedDevice, ...]
    stages: tuple[PlannedStage, ...]
    out: Path
    upload: str = ""
    kept: tuple[Mapping[str, Any], ...] = ()
    reuse: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self), "out": str(self.out)}

    def to_text(self) -> str:
        """The plan for a terminal."""
        how = f"seed {self.seed}, policy {self.policy}, backend {self.backend}"
        lines = [f"{self.job}: {self.n_items} items, {how}"]
        if self.groups:
            lines.append("  groups   " + ", ".join(f"{name} ({n})" for name, n in self.groups.items()))
        for number, stage in enumerate(self.stages, start=1):
            size = "unknown" if stage.weight_bytes is None else gib_text(stage.weight_bytes)
            outputs = ", ".join(f"{name} ({kind})" for name, kind in stage.outputs.items())
            files = f", outputs {outputs}" if outputs else ""
            if stage.needs is not None:
                files = f", takes from {', '.join(stage.needs) or 'the items'}{files}"
            where = f"each of {stage.devices}" if stage.devices else "each device"
            lines.append(f"  stage {number}  {stage.name} = {stage.target}: weights {size} on {where}{files}")
        for device in self.devices:
            memory = "" if device.memory_bytes is None else f", {gib_text(device.memory_bytes)}"
            lines.append(f"  device   {device.id}  {device.name} (score {device.score:.0f}{memory})")
        lines.append(f"  results  {self.out}")
        if self.upload:
            lines.append(f"  copies   {self.upload}")
        if self.reuse:
            lines.append(f"  kept     {self.reuse}")
        return "\n".join(lines)
