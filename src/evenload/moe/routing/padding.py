"""Padding: ids of a batch that are no token's, told by a mask."""

from typing import Any

import numpy as np

from evenload._arguments import array_of
from evenload._optional import require
from evenload.errors import ConfigError, quoted


def without_padding(ids: Any, mask: Any) -> Any:
    """``ids`` with -1 wherever ``mask`` is False; as they are without a mask.

    ids   an array or a tensor, on any device
    mask  truth values, of the ids' shape or of one less: [tokens] for [tokens, top-k]; on the ids' device
          for a tensor there. None: no padding

    Nothing waits for a device. Dtypes that have no -1 become int64. Raises ConfigError for other masks.
    """
    if mask is None:
        return ids
    if hasattr(ids, "detach"):
        return _of_tensor(ids, mask)
    found, flags = array_of("ids", ids), array_of("mask", mask)
    _check(flags.dtype == np.bool_ or not flags.size, flags, tuple(flags.shape), tuple(found.shape))
    if found.dtype.kind not in "iu" and found.size:
        raise ConfigError(f"ids have dtype {found.dtype}", hint="give integers")
    found = found if found.dtype in (np.int64, np.int32) else found.astype(np.int64)
    flags = flags.astype(bool)
    return np.where(flags if flags.ndim == found.ndim else flags[..., None], found, found.dtype.type(-1))


def _of_tensor(ids: Any, mask: Any) -> Any:
    torch = require("torch", extra="moe")
    if not isinstance(mask, torch.Tensor):
        if ids.device.type != "cpu":
            raise ConfigError(
                f"mask is {quoted(mask)}", hint=f"give a tensor of truth values on {ids.device}"
            )
        mask = torch.from_numpy(np.array(array_of("mask", mask)))
    is_flag = mask.dtype == torch.bool and mask.layout == torch.strided
    is_here = mask.device == ids.device
    _check(is_flag and is_here, mask, tuple(mask.shape), tuple(ids.shape))
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise ConfigError(f"ids have dtype {ids.dtype}", hint="give integers")
    ids = ids if ids.dtype in (torch.int64, torch.int32) else ids.long()
    return torch.where(mask if mask.ndim == ids.ndim else mask[..., None], ids, -1)


def _check(is_flag: bool, mask: Any, shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    if not is_flag or (shape != wanted and (len(wanted) < 2 or shape != wanted[:-1])):
        raise ConfigError(
            f"mask: {mask.dtype}, of shape {list(shape)}",
            hint=f"give truth values of shape {list(wanted)}, or all but its last, where the ids are",
        )
