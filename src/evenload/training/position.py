"""``Position``: the epoch and the samples of it that are trained: what a checkpoint keeps."""

from collections.abc import Mapping
from typing import Any

from evenload._arguments import whole
from evenload.errors import ConfigError, quoted

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
