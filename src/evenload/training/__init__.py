"""Train data-parallel on unequal GPUs at full speed, with the gradient of the whole batch.

    even = EvenBatches(dataset, global_batch=256)
    for x, y in DataLoader(dataset, batch_sampler=even):
        even.scale(loss_fn(model(x), y)).backward()

Each name is imported on first use.
"""

from typing import TYPE_CHECKING

from evenload._lazy import lazy_names

if TYPE_CHECKING:
    from evenload.training.chain import Repeated, TrainingChain
    from evenload.training.even_batches import EvenBatches
    from evenload.training.record import Step, TrainingRecord
    from evenload.training.shares import Cost, Shares, share
    from evenload.training.trainer_mixin import EvenTrainerMixin

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "chain": "Repeated TrainingChain",
        "even_batches": "EvenBatches",
        "record": "Step TrainingRecord",
        "shares": "Cost share Shares",
        "trainer_mixin": "EvenTrainerMixin",
    },
)
