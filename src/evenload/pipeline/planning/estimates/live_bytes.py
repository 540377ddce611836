"""How many bytes of tensors live at once while something runs: of real ones, or of fake ones."""

import weakref
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["peak_tensor_bytes"]


def peak_tensor_bytes(run: Callable[[], Any], outside: Iterable[Any] = ()) -> int:
    """Most bytes of storages that ``run`` made and that lived at the same time.

    outside  tensors that are there anyway (weights): they do not count
    Allocators round up and keep what was freed, so that a driver sees more; the larger the tensors, the less.
    """
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_iter

    class Watch(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen = {tensor.untyped_storage()._cdata for tensor in outside}
            self.now, self.peak = 0, 0
            self.kept: dict[int, Any] = {}

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            for tensor in tree_iter(made):
                if hasattr(tensor, "untyped_storage"):
                    self.count(tensor.untyped_storage())
            return made

        def count(self, storage: Any) -> None:
            key = storage._cdata
            if key in self.seen:
                return
            self.seen.add(key)
            n_bytes = storage.nbytes()
            self.now += n_bytes
            self.peak = max(self.peak, self.now)

            def gone(_reference: Any) -> None:
                self.now -= n_bytes
                self.seen.discard(key)
                self.kept.pop(key, None)

            self.kept[key] = weakref.ref(storage, gone)

    watch = Watch()
    with watch:
        run()
    return watch.peak
