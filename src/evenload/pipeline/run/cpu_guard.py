"""A job that has landed on the CPU although nobody asked for it: refused before anything is loaded."""

from typing import TYPE_CHECKING, Any

from evenload.errors import NoUsableDevice, quoted
from evenload.pipeline.job.builtin_stages import BUILTIN_STAGES

if TYPE_CHECKING:
    from evenload.devices import DevicePool
    from evenload.pipeline.job.spec import JobSpec


def may_use_cpu(use: Any) -> bool:
    """Did somebody name the CPU, or give the devices one by one?"""
    return not isinstance(use, str | int) or "cpu" in str(use)


def refuse_cpu(spec: "JobSpec", pool: "DevicePool", use: Any) -> None:
    """Raises NoUsableDevice if stages that ship with a model would run on the CPU, where it takes hours."""
    stages = [
        stage.name
        for stage in spec.stages
        if stage.kind in BUILTIN_STAGES and BUILTIN_STAGES[stage.kind].needs_model
    ]
    if stages and not may_use_cpu(use) and all(device.kind == "cpu" for device in pool):
        raise NoUsableDevice(
            f"{', '.join(stages)} landed on the CPU (devices {quoted(use)}), where their models take hours",
            hint="say so if it is meant: --devices cpu; `evenload doctor` says why no GPU was found",
        )
