"""Pipelines: a job file names the items and the stages they go through; each stage runs over all devices.

    Pipeline.from_yaml("job.yaml").run()

Each name is imported on first use; reading a job file needs the extra ``yaml``.
"""

from typing import TYPE_CHECKING

from evenload._lazy import lazy_names

if TYPE_CHECKING:
    from evenload.pipeline.artifacts import read_picture
    from evenload.pipeline.batch_edit import MultiDeviceImageEdit
    from evenload.pipeline.pipeline import ItemResult, Pipeline, PipelineResult
    from evenload.pipeline.seeds import item_seed
    from evenload.pipeline.stage import Item, Stage, StageContext

_HOMES = {
    "Item": "stage",
    "ItemResult": "pipeline",
    "MultiDeviceImageEdit": "batch_edit",
    "Pipeline": "pipeline",
    "PipelineResult": "pipeline",
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

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
