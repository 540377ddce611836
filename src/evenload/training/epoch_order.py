"""``EpochOrder``: the samples of an epoch in order, the same on every rank, cut into global batches.

Which samples a step has follows from the seed and the epoch alone: from no share, speed or number of ranks.
"""

import hashlib
from collections.abc import Iterable, Sequence, Sized
from typing import Any

from evenload._arguments import flag, length, whole
from evenload.errors import ConfigError, quoted

MOST_SEED = 2**62
INSTEAD = "give a map-style data set, or a sampler with __len__"


class EpochOrder:
    """An order of samples for each epoch, of a data set or of a sampler.

    A data set's order is that of torch's DistributedSampler with the same seed and epoch. Of a sampler, what
    it yields; ``digest`` tells whether that is the same on all ranks.

    Raises ConfigError for what has no length or is empty, for a DataLoader and an IterableDataset.
    """

    def __init__(self, source: Any, *, shuffle: bool, seed: int):
        self.is_shuffled, self.seed = flag("shuffle", shuffle), whole("seed", seed, most=MOST_SEED)
        self._sampler: Iterable[Any] | None = None
        from torch.utils.data import DataLoader, IterableDataset

        if isinstance(source, DataLoader | IterableDataset):
            raise ConfigError(f"{type(source).__name__} has no samples by number", hint=INSTEAD)
        if hasattr(source, "__iter__") and not hasattr(source, "__getitem__"):
            self._sampler = source
            if not isinstance(source, Sized):
                raise ConfigError(f"the sampler {type(source).__name__} has no length", hint=INSTEAD)
        self.n_samples = whole("samples", length("the data set or sampler", source), most=None)
        if not self.n_samples:
            raise ConfigError(f"{quoted(source)} has no samples", hint="give a data set with samples")

    @property
    def is_given(self) -> bool:
        """Whether the order comes from a sampler, which may be another on each rank."""
        return self._sampler is not None

    def of(self, epoch: int) -> Sequence[Any]:
        """Return the samples of an epoch, in order."""
        if self._sampler is not None:
            if hasattr(self._sampler, "set_epoch"):
                self._sampler.set_epoch(epoch)  # pyrefly: ignore
            return list(self._sampler)
        if not self.is_shuffled:
            return range(self.n_samples)
        import torch

        generator = torch.Generator()
        generator.manual_seed(self.seed + epoch)
        return torch.randperm(self.n_samples, generator=generator).tolist()


def digest(samples: Sequence[Any]) -> float:
    """Return a number that differs if the samples or their order do, exact as a float."""
    found = hashlib.blake2b(digest_size=6)
    for one in samples:
        found.update(repr(one).encode() + b"\0")
    return float(int.from_bytes(found.digest(), "big"))
