"""Measure how many bytes of tensors live at once while something runs; tensors may be real or fake."""

import weakref
from collections.abc import Callable, Iterable
from typing import Any


def peak_tensor_bytes(run: Callable[[], Any], outside: Iterable[Any] = ()) -> int:
    """Return the most bytes of storages that ``run`` made and that lived at the same time.

    outside  tensors that exist anyway, such as weights: they do not count
    A driver reports more, as allocators round up and keep what was freed; least so for large tensors.
    """
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_iter

    count = _StorageCount({tensor.untyped_storage()._cdata for tensor in outside})

    class CountStorages(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            for tensor in tree_iter(made):
                if hasattr(tensor, "untyped_storage"):
                    count.add(tensor.untyped_storage())
            return made

    with CountStorages():
        run()
    return count.peak_bytes


class _StorageCount:
    """The bytes of all storages that live now, and their peak. ``seen``: keys of storages not to count."""

    def __init__(self, seen: set[int]):
        self._seen = seen
        self._kept: dict[int, Any] = {}
        self._now_bytes = self.peak_bytes = 0

    def add(self, storage: Any) -> None:
        """Count ``storage`` until it is freed."""
        key = storage._cdata
        if key in self._seen:
            return
        self._seen.add(key)
        n_bytes = storage.nbytes()
        self._now_bytes += n_bytes
        self.peak_bytes = max(self.peak_bytes, self._now_bytes)

        def forget(_reference: Any) -> None:
            self._now_bytes -= n_bytes
            self._seen.discard(key)
            self._kept.pop(key, None)

        self._kept[key] = weakref.ref(storage, forget)
