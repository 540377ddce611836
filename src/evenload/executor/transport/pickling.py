"""Objects as bytes and large buffers, ready for a frame.

Protocol 5 keeps large buffers (of arrays, tensors, bytes; ``pickle.PickleBuffer``) out of the pickle stream.
"""

import copyreg
import functools
import io
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any

from evenload.executor.transport.memory_maps import MemoryMaps

OUT_OF_BAND_BYTES = 64 * 1024
MOST_BUFFERS = 4096  # in one frame; more of them go into the pickle
LEAST_SHARE = 0.5  # of its storage that a view must cover for all of it to be sent
MOST_MARKED = 256  # values in a message that are checked one by one


def pack(obj: Any, *, by_name: bool = True, by_file: bool = False) -> tuple[bytes, list[memoryview]]:
    """Pickle ``obj``; returns the bytes, and buffers of 64 KiB and more, which are not copied.

    by_name  functions and classes may be pickled as the name of their module and their own
    by_file  arrays in the memory map of a file are pickled as the name of the file and their place in it

    Objects of ``__main__`` (a script, a notebook) cannot be imported by the other process, and plain pickle
    refuses some (a lambda): cloudpickle sends both by value. Raises what cloudpickle raises if it cannot.
    """
    buffers: list[memoryview] = []

    def stays_inside(buffer: pickle.PickleBuffer) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:  # not contiguous
            return True
        if raw.nbytes < OUT_OF_BAND_BYTES or len(buffers) == MOST_BUFFERS:
            return True
        buffers.append(raw)
        return False

    if by_name:
        try:
            body = _dumps(obj, stays_inside, by_file)
        except Exception:
            pass  # cloudpickle below can do it, or raises with its own message
        else:
            if b"__main__" not in body:
                return body, buffers
        buffers.clear()
    return _dumps_by_value(obj, stays_inside, by_file), buffers


def _dumps(obj: Any, stays_inside: Callable[[pickle.PickleBuffer], bool], by_file: bool) -> bytes:
    if "numpy" not in sys.modules:
        return pickle.dumps(obj, protocol=5, buffer_callback=stays_inside)
    file = io.BytesIO()
    pickler = pickle.Pickler(file, 5, buffer_callback=stays_inside)
    pickler.dispatch_table = {**copyreg.dispatch_table, **_reducers(by_file)}
    pickler.dump(obj)
    return file.getvalue()


def _dumps_by_value(obj: Any, stays_inside: Callable[[pickle.PickleBuffer], bool], by_file: bool) -> bytes:
    file, kind = io.BytesIO(), _pickler_by_value()
    pickler = kind.__new__(kind)
    # Before __init__, which looks for it: set later, it is ignored, as the class has a table of its own.
    pickler.dispatch_table = {**kind.dispatch_table, **_reducers(by_file)}
    pickler.__init__(file, 5, buffer_callback=stays_inside)
    pickler.dump(obj)
    return file.getvalue()


@functools.cache
def _pickler_by_value() -> Any:
    """cloudpickle's, which forgets the slots of classes: their objects could be sent there but not back."""
    import cloudpickle

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, obj: Any) -> Any:
            reduced = super().reducer_override(obj)
            # A tuple has none that hold anything, and NamedTuple refuses to be given any.
            has_slots = isinstance(obj, type) and bool(vars(obj).get("__slots__"))
            if has_slots and type(reduced) is tuple:
                make, arguments, *rest = reduced
                if make.__name__ == "_make_skeleton_class" and type(arguments[3]) is dict:
                    with_slots = {**arguments[3], "__slots__": vars(obj)["__slots__"]}
                    return make, (*arguments[:3], with_slots, *arguments[4:]), *rest
            return reduced

    return Pickler


def _reducers(by_file: bool) -> dict[type, Callable[[Any], Any]]:
    table = _tensor_reducers()
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "ascontiguousarray"):
        table[numpy.ndarray] = _reduce_array
        if by_file:
            maps = MemoryMaps()
            table[numpy.ndarray] = table[numpy.memmap] = lambda one: maps.reduce(one) or _reduce_array(one)
    return table


def _reduce_array(array: Any) -> Any:
    """Reduce as numpy does, but copy an array with gaps first: numpy would copy it into the pickle."""
    if array.nbytes >= OUT_OF_BAND_BYTES and not array.flags.forc and not array.dtype.hasobject:
        array = sys.modules["numpy"].ascontiguousarray(array)
    return array.__reduce_ex__(5)


class _OutOfBand:
    """Large bytes that pickle as an out-of-band buffer."""

    def __init__(self, value: bytes | bytearray):
        self.value = value

    def __reduce__(self) -> tuple:
        return type(self.value), (pickle.PickleBuffer(self.value),)


def mark_large(values: Sequence[Any]) -> Sequence[Any]:
    """Return the values for ``pack``, with large bytes among them marked to be sent as buffers."""
    if len(values) > MOST_MARKED or not any(
        type(value) in (bytes, bytearray) and len(value) >= OUT_OF_BAND_BYTES for value in values
    ):
        return values
    return [
        _OutOfBand(value) if type(value) in (bytes, bytearray) and len(value) >= OUT_OF_BAND_BYTES else value
        for value in values
    ]


def _tensor_reducers() -> dict[type, Callable[[Any], Any]]:
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
    """Reduces the storages of one message's tensors to buffers, which torch itself would copy.

    Torch does the rest. Tensors that share memory still share it after unpickling, except for a small view
    of a large storage that nothing else in the message uses: only the view is sent then.
    """

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
