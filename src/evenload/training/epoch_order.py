"""``EpochOrder``: the samples of an epoch in order, the same on every rank, cut into global batches.

Which samples a step has follows from the seed and the epoch alone: from no share, speed or number of ranks.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence, Sized
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


# --- the place in them ------------------------------------------------------------------------------------


VERSION = 1
MOST_EPOCH = 2**40


class Position:
    """A place in the epochs of a training, in samples.

    n_used  samples of an epoch that are trained; ``n_steps``: steps
    """

    def __init__(self, n_samples: int, global_batch: int, drop_last: bool):
        self._n_samples, self._batch = n_samples, global_batch
        self.n_steps = n_samples // global_batch if drop_last else -(-n_samples // global_batch)
        self.n_used = min(n_samples, self.n_steps * global_batch)
        self._epoch = self._n_trained = self._start = 0
        self._has_moved = False  # since the epoch was begun, chosen or loaded

    def begin(self) -> tuple[int, int]:
        """Return the epoch that begins, and with which sample: 0, or as loaded.

        It is the next one if anything of the last was trained, also if that was left before its end.
        """
        if self._has_moved or self._n_trained >= self.n_used:
            self._epoch, self._start = self._epoch + 1, 0
        self._n_trained, self._has_moved = self._start, False
        return self._epoch, self._start

    def passed(self, n_samples: int) -> None:
        """Count a step that was trained, or left out."""
        self._n_trained += n_samples
        self._has_moved = True

    def set_epoch(self, epoch: int) -> None:
        """Begin with ``epoch`` next; where it was left, if it is the one that was loaded."""
        epoch = whole("epoch", epoch, most=MOST_EPOCH)
        if epoch != self._epoch or self._n_trained >= self.n_used:
            self._epoch, self._n_trained, self._start = epoch, 0, 0
        elif self._has_moved:
            self._start = 0
        self._has_moved = False

    def is_last_full(self, n_ranks: int) -> bool:
        """Whether each rank has a sample of every step."""
        return not self.n_steps or self.n_used - (self.n_steps - 1) * self._batch >= n_ranks

    def go_to(self, epoch: int, n_steps: int) -> None:
        """Go on in ``epoch``, of which ``n_steps`` steps were trained."""
        n_steps = whole("n_steps", n_steps, most=self.n_steps)
        self._epoch = whole("epoch", epoch, most=MOST_EPOCH)
        self._n_trained = self._start = min(n_steps * self._batch, self.n_used)
        self._has_moved = False

    @property
    def place(self) -> tuple[int, int]:
        """The epoch, and how many samples of it are trained."""
        return self._epoch, self._n_trained

    @property
    def n_left(self) -> int:
        """Steps of the epoch that are not trained yet."""
        return -(-max(0, self.n_used - self._n_trained) // self._batch)

    def to_json(self) -> dict[str, Any]:
        """Return it for a checkpoint."""
        return {
            "version": VERSION,
            "epoch": self._epoch,
            "n_trained": self._n_trained,
            "n_samples": self._n_samples,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Take a checkpoint's place. Raises ConfigError, and changes nothing, if it makes no sense here."""
        if not isinstance(state, Mapping) or state.get("version") != VERSION:
            raise ConfigError(f"the state is {quoted(state)}", hint="give what state_dict() has returned")
        n_samples = whole("n_samples of the state", state.get("n_samples"), most=None)
        if n_samples != self._n_samples:
            raise ConfigError(
                f"the state is of {n_samples} samples, and there are {self._n_samples}",
                hint="use the data set that the checkpoint was made with",
            )
        epoch = whole("epoch of the state", state.get("epoch"), most=MOST_EPOCH)
        n_trained = whole("n_trained of the state", state.get("n_trained"), most=n_samples)
        self._epoch, self._n_trained, self._start = epoch, n_trained, n_trained
        self._has_moved = False
