"""Max pooling of images whose samples lie innermost, over windows that do not overlap.

    forward(x, largest, places, planes, samples)
    backward(grad, places, dx, planes, samples)

x [planes, height, width, samples], float32 or float64; largest and places [planes, height // size,
width // size, samples], where a place, a whole number of as many bits, is the number of its window's entry.
Of equal numbers the first counts, of NaNs the last, as in torch.
"""

import functools
from collections.abc import Callable
from typing import Any

from evenload.gpu.llvm import program
from evenload.gpu.llvm.program import Program, Recipe

__all__ = ["SIGNATURES", "pool_program"]

SIGNATURES = {"forward": 5, "backward": 5}


@functools.cache
def pool_program(height: int, width: int, size: int, lanes: int, n_bytes: int) -> Program:
    """The kernels for images of one shape and windows of ``size`` x ``size``. Raises MissingExtra."""
    sources = program.sources("llvm.conv.pooling", "llvm.field.floats", "llvm.ir_builder")
    build = functools.partial(pool_ir, height, width, size, lanes, n_bytes)
    name = "pool-" + "-".join(map(str, (height, width, size, lanes, n_bytes)))
    return program.load(Recipe(name, SIGNATURES, build, sources))


def pool_ir(height: int, width: int, size: int, lanes: int, n_bytes: int) -> str:
    """The LLVM IR of the kernels."""
    from llvmlite import ir

    from evenload.gpu.llvm.field.floats import Floats
    from evenload.gpu.llvm.ir_builder import add_kernel

    def body(name: str) -> Callable[..., None]:
        def emit(code: Any, *arguments: Any) -> None:
            getattr(_Windows(Floats(code, lanes, n_bytes), height, width, size), name)(*arguments)

        return emit

    module = ir.Module("pool")
    for name, n_arguments in SIGNATURES.items():
        add_kernel(module, name, n_arguments, body(name))
    return str(module)


class _Windows:
    """The bodies of the kernels; each public method is one of SIGNATURES."""

    def __init__(self, f: Any, height: int, width: int, size: int):
        self.f, self.code = f, f.code
        self.height, self.width, self.size = height, width, size

    def forward(self, x: Any, largest: Any, places: Any, planes: Any, n: Any) -> None:
        f, builder = self.f, self.code.ir

        def window(entries: list[Any], out: Any, mask: Any) -> None:
            best, place = f.load_first(self.code.add(x, entries[0]), mask), f.whole(0)
            for number, entry in enumerate(entries[1:], 1):
                value = f.load_first(self.code.add(x, entry), mask)
                is_nan = builder.fcmp_unordered("uno", value, value)
                is_chosen = builder.or_(builder.fcmp_ordered(">", value, best), is_nan)
                best = builder.select(is_chosen, value, best)
                place = builder.select(is_chosen, f.whole(number), place)
            f.store_first(best, self.code.add(largest, out), mask)
            f.store_first(builder.bitcast(place, f.kind), self.code.add(places, out), mask)

        self._each(planes, n, window)

    def backward(self, grad: Any, places: Any, dx: Any, planes: Any, n: Any) -> None:
        f, builder = self.f, self.code.ir

        def window(entries: list[Any], out: Any, mask: Any) -> None:
            value = f.load_first(self.code.add(grad, out), mask)
            place = builder.bitcast(f.load_first(self.code.add(places, out), mask), f.whole(0).type)
            for number, entry in enumerate(entries):
                is_here = builder.icmp_signed("==", place, f.whole(number))
                f.store_first(builder.select(is_here, value, f.zero()), self.code.add(dx, entry), mask)

        if self.height % self.size or self.width % self.size:
            self._clear(dx, planes, n)
        self._each(planes, n, window)

    def _each(self, planes: Any, n: Any, body: Callable[[list[Any], Any, Any], None]) -> None:
        """``body(bytes to each entry of the window, bytes to its output, mask)`` for every window."""
        f, code, size = self.f, self.code, self.size
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

    def _clear(self, dx: Any, planes: Any, n: Any) -> None:
        """Write zeros into all of ``dx``, for places that no window covers."""
        f, code = self.f, self.code
        total = code.mul(code.mul(planes, self.height * self.width), n)
        with code.range(0, total, f.lanes) as at:
            f.store_first(f.zero(), code.add(dx, code.mul(at, f.n_bytes)), f.first(code.sub(total, at)))
