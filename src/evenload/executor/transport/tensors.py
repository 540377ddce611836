"""Pickling of torch tensors with their memory as out-of-band buffers; torch itself would copy it.

Only storages are reduced differently; torch does the rest. Tensors that share memory still share it after
unpickling, except for a small view of a large storage that nothing else in the message uses: only the view
is sent then.
"""

import pickle
import sys
from collections.abc import Callable
from typing import Any

LEAST_SHARE = 0.5  # of its storage that a view must cover for all of it to be sent


def reducers() -> dict[type, Callable[[Any], Any]]:
    """Return entries for a pickler's dispatch table, for one message. Empty if torch is not imported."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "frombuffer"):  # or it is being imported just now
        return {}
    reducer = _Reducer(torch)
    return {
        torch.Tensor: reducer.tensor,
        torch.UntypedStorage: reducer.untyped,
        torch.storage.TypedStorage: reducer.typed,
    }


class _Reducer:
    def __init__(self, torch: Any):
        self._torch = torch
        self._sent: set[int] = set()

    def tensor(self, tensor: Any) -> Any:
        if self._is_plain(tensor):
            storage = tensor.untyped_storage()
            n_bytes = tensor.numel() * tensor.element_size()
            if n_bytes < LEAST_SHARE * storage.nbytes() and storage.data_ptr() not in self._sent:
                tensor = tensor.clone(memory_format=self._torch.contiguous_format)
        return tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)

    def _is_plain(self, tensor: Any) -> bool:
        is_dense = tensor.device.type == "cpu" and tensor.layout is self._torch.strided
        return is_dense and not (tensor.requires_grad or tensor.is_quantized or tensor.__dict__)

    def untyped(self, storage: Any) -> Any:
        if storage.device.type != "cpu":
            return storage.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        self._sent.add(storage.data_ptr())
        array = self._torch.empty(0, dtype=self._torch.uint8).set_(storage).numpy()
        return _untyped, (pickle.PickleBuffer(array),)

    def typed(self, storage: Any) -> Any:
        if storage._untyped_storage.device.type != "cpu":
            return storage.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return _typed, (storage._untyped_storage, storage.dtype)


def _untyped(buffer: Any) -> Any:
    import torch

    if not memoryview(buffer).nbytes:
        return torch.UntypedStorage(0)
    return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()


def _typed(untyped: Any, dtype: Any) -> Any:
    import torch

    return torch.storage.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)
