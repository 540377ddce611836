"""``EvenLoader``: a ``DataLoader`` of ``EvenBatches``, which accelerate does not deal out a second time."""

import sys
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader


class EvenLoader(DataLoader):  # type: ignore[type-arg]
    """A ``DataLoader`` of the batches of an ``EvenBatches``, prepared in the eyes of accelerate.

    end_of_dataloader  whether this was the epoch's last batch: ``accelerator.accumulate`` steps with it
    remainder          of accelerate's: samples at the end that ``gather_for_metrics`` leaves out; none
    """

    _is_accelerate_prepared = True
    end_of_dataloader, remainder = False, -1

    def __iter__(self) -> Iterator[Any]:  # pyrefly: ignore
        batches = super().__iter__()
        n_left = self.batch_sampler.n_left  # pyrefly: ignore
        # accelerate asks the loader that was begun last; without it there is nobody to tell.
        accelerate = sys.modules.get("accelerate.state")
        state = accelerate.GradientState() if accelerate else None
        self.end_of_dataloader = False
        if state is not None:
            state._add_dataloader(self)
        try:
            for number, batch in enumerate(batches, 1):
                self.end_of_dataloader = number == n_left
                yield batch
        finally:
            if state is not None:
                state._remove_dataloader(self)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next loop is, as ``EvenBatches.set_epoch``."""
        self.batch_sampler.set_epoch(epoch)  # pyrefly: ignore
