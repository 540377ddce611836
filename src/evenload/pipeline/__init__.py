"""Pipelines: a job file names the items and the stages they go through; each stage runs over all devices.

    Pipeline.from_yaml("job.yaml").run()

Each name is imported on first use; reading a job file needs the extra ``jobs``.
"""

from typing import TYPE_CHECKING

from evenload._lazy import lazy_names

if TYPE_CHECKING:
    from evenload.pipeline.artifacts import read_picture
    from evenload.pipeline.batch_edit import MultiDeviceImageEdit
    from evenload.pipeline.pipeline import ItemResult, Pipeline, PipelineResult
    from evenload.pipeline.seeds import item_seed
    from evenload.pipeline.stage import Item, Stage, StageContext

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "artifacts": "read_picture",
        "batch_edit": "MultiDeviceImageEdit",
        "pipeline": "ItemResult Pipeline PipelineResult",
        "seeds": "item_seed",
        "stage": "Item Stage StageContext",
    },
)
