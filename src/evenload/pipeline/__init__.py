"""Pipelines: a job file names the items and the stages they go through; each stage runs over all devices.

    Pipeline.from_yaml("job.yaml").run()

Each name is imported on first use; reading a job file needs the extra ``yaml``.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .artifacts import read_picture
    from .batch_edit import MultiDeviceImageEdit
    from .run import ItemResult, Pipeline, PipelineResult
    from .seeds import item_seed
    from .stage import Item, Stage, StageContext

_HOMES = {
    "Item": "stage",
    "ItemResult": "run",
    "MultiDeviceImageEdit": "batch_edit",
    "Pipeline": "run",
    "PipelineResult": "run",
    "Stage": "stage",
    "StageContext": "stage",
    "item_seed": "seeds",
    "read_picture": "artifacts",
}

__all__ = [
    "Item",
    "ItemResult",
    "MultiDeviceImageEdit",
    "Pipeline",
    "PipelineResult",
    "Stage",
    "StageContext",
    "item_seed",
    "read_picture",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
