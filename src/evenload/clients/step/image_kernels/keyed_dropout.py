"""Places that stay under dropout, by a kernel: one client's as a function, under vmap those of all."""

import math

import torch
from torch import Tensor

from evenload.clients.step.image_kernels.layout import KERNEL_DTYPES, has_kernels, is_ready
from evenload.clients.step.vmap_rules import FirstDerivative
from evenload.gpu.llvm.keyed_places import kept_program


def kept(key: Tensor, salt: int, n: int, p: float, dtype: torch.dtype) -> Tensor | None:
    """1 for each of ``n`` places that stays, 0 for one that is dropped; None without a kernel for it.

    key int64, a scalar
    """
    if key.device.type != "cpu" or dtype not in KERNEL_DTYPES or not has_kernels():
        return None
    if not is_ready(kept_program, dtype.itemsize):
        return None
    # A number in [0, 1) of 53 bits is at least p if these bits are at least p * 2**53, which is exact.
    threshold = min(max(0, math.ceil(p * 2.0**53)), 2**53)
    found = KeptPlaces.apply(key, salt, n, threshold, dtype)
    assert isinstance(found, Tensor)
    return found


class KeptPlaces(FirstDerivative):
    """The places that stay for a key int64 (scalar), as ``n`` ones and zeros; under vmap for all keys."""

    @staticmethod
    def forward(key: Tensor, salt: int, n: int, threshold: int, dtype: torch.dtype) -> Tensor:
        return torch.ops.evenload.kept(key.view(1), salt, n, threshold, dtype)[0]

    @staticmethod
    def vmap(info, in_dims, *args):
        return torch.ops.evenload.kept(*args), 0


_LIBRARY = torch.library.Library("evenload", "FRAGMENT")
_LIBRARY.define("kept(Tensor keys, int salt, int n, int threshold, ScalarType dtype) -> Tensor")


def _empty(keys: Tensor, salt: int, n: int, threshold: int, dtype: torch.dtype) -> Tensor:
    return keys.new_empty((len(keys), n), dtype=dtype)


def _kept(keys: Tensor, salt: int, n: int, threshold: int, dtype: torch.dtype) -> Tensor:
    keys, out = keys.contiguous(), _empty(keys, salt, n, threshold, dtype)
    kept_program(dtype.itemsize).kept(keys.data_ptr(), out.data_ptr(), len(keys), n, salt, threshold)
    return out


torch.library.register_fake("evenload::kept", _empty, lib=_LIBRARY)
_LIBRARY.impl("kept", _kept, "CPU")
