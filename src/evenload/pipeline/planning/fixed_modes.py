"""How a job runs where nobody has planned it: by its mode alone, without knowing times or sizes."""

from collections.abc import Sequence

from evenload.errors import ConfigError
from evenload.pipeline.plan import Fit, Phase, Unit

__all__ = ["phases_of_mode"]


def phases_of_mode(
    mode: str, stages: Sequence[str], devices: Sequence[str], *, split: Sequence[str] = (), in_flight: int = 1
) -> tuple[Phase, ...]:
    """The phases of ``mode`` over ``devices``, in order of preference.

    split      stages whose layers can be spread over devices, for model_parallel
    in_flight  items at once where they are
    "auto" is swap, which needs the least memory. Raises ConfigError if the devices are too few.
    """
    stages, devices = tuple(stages), tuple(devices)
    if mode == "single":
        devices = devices[:1]
    if mode == "data_parallel":
        units = [Unit((device,), stage) for stage in stages for device in devices]
        return (Phase(tuple(units), stages),)
    if mode == "stage_parallel":
        if len(devices) < len(stages):
            raise ConfigError(
                f"mode stage_parallel needs a device for each of {len(stages)} stages, but there are "
                f"{len(devices)}",
                hint="use mode: swap, or more devices such as --devices cpu*4",
            )
        units = [Unit((device,), stages[at % len(stages)]) for at, device in enumerate(devices)]
        return (Phase(tuple(units), stages),)
    if mode == "model_parallel" and len(devices) > 1:
        fit = Fit("layer_split", in_flight=in_flight)
        return tuple(
            Phase((Unit(devices, stage, fit),), (stage,)) if stage in split else _side_by_side(stage, devices)
            for stage in stages
        )
    return tuple(_side_by_side(stage, devices) for stage in stages)


def _side_by_side(stage: str, devices: Sequence[str]) -> Phase:
    return Phase(tuple(Unit((device,), stage) for device in devices), (stage,))
