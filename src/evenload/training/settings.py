"""``checked_settings``: what all ranks of a training have to have alike."""

from collections.abc import Mapping
from typing import Any

from evenload._arguments import flag, whole
from evenload.errors import ConfigError

__all__ = ["checked_settings"]


def checked_settings(given: Mapping[str, Any], n_samples: int, n_ranks: int) -> dict[str, Any]:
    """Return the settings that all ranks have to have alike. Raises ConfigError."""
    batch = whole("global_batch", given["global_batch"], least=1)
    micro = None if given["micro_batch"] is None else whole("micro_batch", given["micro_batch"], least=1)
    drop_last = flag("drop_last", given["drop_last"])
    if n_samples < n_ranks:
        raise ConfigError(
            f"{n_samples} samples are fewer than {n_ranks} ranks", hint="use more samples, or fewer ranks"
        )
    if drop_last and n_samples < batch:
        raise ConfigError(
            f"{n_samples} samples make no global batch of {batch}",
            hint="use drop_last=False, or a smaller one",
        )
    return {"global_batch": batch, "samples": n_samples, "micro_batch": micro, "drop_last": drop_last}
