"""Max pooling of images whose samples lie innermost, over windows that do not overlap.

    forward(x, largest, places, planes, samples)
    backward(grad, places, dx, planes, samples)

x [planes, height, width, samples], float32 or float64; largest and places [planes, height // size,
width // size, samples], where a place, a whole number of as many bits, is the number of its window's entry.
Of equal numbers the first counts, of NaNs the last, as in torch.
"""

from collections.abc import Callable
from typing import Any

from evenload.gpu.llvm.field.floats import Floats
from evenload.gpu.llvm.ir_builder import Code


class Pooling:
    """The bodies of the kernels for images of one shape; each public method is one of them."""

    def __init__(self, height: int, width: int, size: int, lanes: int, n_bytes: int):
        self.height, self.width, self.size = height, width, size
        self.lanes, self.n_bytes = lanes, n_bytes

    def forward(self, code: Code, x: Any, largest: Any, places: Any, planes: Any, n: Any) -> None:
        f, builder = Floats(code, self.lanes, self.n_bytes), code.ir

        def window(entries: list[Any], out: Any, mask: Any) -> None:
            best, place = f.load(code.add(x, entries[0]), mask=mask), f.whole(0)
            for number, entry in enumerate(entries[1:], 1):
                value = f.load(code.add(x, entry), mask=mask)
                is_nan = builder.fcmp_unordered("uno", value, value)
                is_chosen = builder.or_(builder.fcmp_ordered(">", value, best), is_nan)
                best = builder.select(is_chosen, value, best)
                place = builder.select(is_chosen, f.whole(number), place)
            f.store(best, code.add(largest, out), mask=mask)
            f.store(builder.bitcast(place, f.kind), code.add(places, out), mask=mask)

        self._each(f, planes, n, window)

    def backward(self, code: Code, grad: Any, places: Any, dx: Any, planes: Any, n: Any) -> None:
        f, builder = Floats(code, self.lanes, self.n_bytes), code.ir

        def window(entries: list[Any], out: Any, mask: Any) -> None:
            value = f.load(code.add(grad, out), mask=mask)
            place = builder.bitcast(f.load(code.add(places, out), mask=mask), f.whole(0).type)
            for number, entry in enumerate(entries):
                is_here = builder.icmp_signed("==", place, f.whole(number))
                f.store(builder.select(is_here, value, f.zero()), code.add(dx, entry), mask=mask)

        if self.height % self.size or self.width % self.size:
            self._clear(f, dx, planes, n)
        self._each(f, planes, n, window)

    def _each(self, f: Floats, planes: Any, n: Any, body: Callable[[list[Any], Any, Any], None]) -> None:
        """``body(bytes to each entry of the window, bytes to its output, mask)`` for every window."""
        code, size = f.code, self.size
        rows, columns = self.height // size, self.width // size
        sample_bytes = code.mul(n, f.n_bytes)
        steps = [i * self.width + j for i in range(size) for j in range(size)]
        with code.range(0, planes) as plane, code.range(0, n, f.lanes) as start:
            mask, offset = f.first(code.sub(n, start)), code.mul(start, f.n_bytes)
            with code.range(0, rows) as i, code.range(0, columns) as j:
                line = code.add(code.mul(plane, self.height), code.mul(i, size))
                corner = code.add(code.mul(line, self.width), code.mul(j, size))
                at = code.add(code.mul(corner, sample_bytes), offset)
                out = code.add(code.mul(code.add(code.mul(plane, rows), i), columns), j)
                entries = [code.add(at, code.mul(sample_bytes, step)) for step in steps]
                body(entries, code.add(code.mul(out, sample_bytes), offset), mask)

    def _clear(self, f: Floats, dx: Any, planes: Any, n: Any) -> None:
        """Write zeros into all of ``dx``, for places that no window covers."""
        code = f.code
        total = code.mul(code.mul(planes, self.height * self.width), n)
        with code.range(0, total, f.lanes) as at:
            mask = f.first(code.sub(total, at))
            f.store(f.zero(), code.add(dx, code.mul(at, f.n_bytes)), mask=mask)
