"""Small convolutions of many clients, each with its own weights: a vector holds one place of many samples.

    forward(x, weight, bias, y, scratch, clients, samples)
    input_gradient(grad, weight, dx, scratch, clients, samples)
    weight_gradient(x, grad, dweight, dbias, scratch, clients, samples)

Images are [clients, channels, height, width, samples], the samples innermost; weights are as torch has them,
a set per client; all float32 or all float64. Libraries fill a vector with channels or with neighbouring
places; the networks of federated clients have few of either, and always a batch of samples.

A block of samples is copied into ``scratch`` with its padding. Then a tile of outputs, so many channels times
so many neighbouring places, stays in registers while all of its products run by.
"""

import functools
from typing import Any

from evenload.gpu.llvm import program
from evenload.gpu.llvm.conv.geometry import Geometry, blocks, scratch_bytes, tile
from evenload.gpu.llvm.program import Program, Recipe

__all__ = ["SIGNATURES", "Geometry", "conv_program", "scratch_bytes"]

SIGNATURES = {"forward": 7, "input_gradient": 6, "weight_gradient": 7}


@functools.cache
def conv_program(g: Geometry, lanes: int, n_bytes: int) -> Program:
    """The kernels for one geometry: ``lanes`` samples in a vector, numbers of ``n_bytes``.

    Raises MissingExtra.
    """
    pieces = ("conv.kernels", "conv.weights", "conv.images", "conv.geometry", "field.floats", "ir_builder")
    numbers = (g.c_in, g.c_out, g.height, g.width, g.k_height, g.k_width, g.pad_height, g.pad_width)
    name = "conv-" + "-".join(map(str, (*numbers, lanes, n_bytes)))
    build = functools.partial(conv_ir, g, lanes, n_bytes)
    return program.load(
        Recipe(name, SIGNATURES, build, program.sources(*(f"llvm.{piece}" for piece in pieces)))
    )


def conv_ir(g: Geometry, lanes: int, n_bytes: int) -> str:
    """The LLVM IR of the kernels."""
    from llvmlite import ir

    from evenload.gpu.llvm.conv.weights import weight_gradient
    from evenload.gpu.llvm.field.floats import Floats
    from evenload.gpu.llvm.ir_builder import add_kernel

    def forward(code: Any, x: Any, weight: Any, bias: Any, y: Any, scratch: Any, k: Any, n: Any) -> None:
        _ConvolutionBody(Floats(code, lanes, n_bytes), g).emit(x, weight, bias, y, scratch, k, n)

    def input_gradient(code: Any, grad: Any, weight: Any, dx: Any, scratch: Any, k: Any, n: Any) -> None:
        _ConvolutionBody(Floats(code, lanes, n_bytes), g.turned()).emit(grad, weight, None, dx, scratch, k, n)

    def of_weights(code: Any, *arguments: Any) -> None:
        weight_gradient(Floats(code, lanes, n_bytes), g, *arguments)

    module = ir.Module("conv")
    for name, body in zip(SIGNATURES, (forward, input_gradient, of_weights), strict=True):
        add_kernel(module, name, SIGNATURES[name], body)
    return str(module)


class _ConvolutionBody:
    """The body of a convolution kernel for geometry ``g``.

    For gradients of inputs ``g`` is the turned one; there is no bias then, and the weights are turned, too.
    """

    def __init__(self, f: Any, g: Geometry):
        self.f, self.code, self.g = f, f.code, g
        self.n_channels, self.n_places = tile(g.c_out, g.out_width)

    def emit(self, x: Any, weight: Any, bias: Any, y: Any, scratch: Any, k: Any, n: Any) -> None:
        from evenload.gpu.llvm.conv.images import clear, pack

        f, code, g = self.f, self.code, self.g
        self.images = scratch
        self.table = code.add(scratch, f.row_bytes * g.c_in * g.padded[0] * g.padded[1])
        self.sample_bytes = code.mul(n, f.n_bytes)
        clear(f, self.images, g)
        with code.range(0, k) as client:
            own_x = self._of(x, client, g.c_in * g.height * g.width, self.sample_bytes)
            own_y = self._of(y, client, g.c_out * g.out_height * g.out_width, self.sample_bytes)
            own_bias = None if bias is None else self._of(bias, client, g.c_out, f.n_bytes)
            self._order(
                self._of(weight, client, g.c_in * g.c_out * g.taps, f.n_bytes), is_turned=bias is None
            )
            with code.range(0, n, f.lanes) as start:
                mask, offset = f.first(code.sub(n, start)), code.mul(start, f.n_bytes)
                pack(f, code.add(own_x, offset), self.images, self.sample_bytes, mask, g)
                with code.range(0, g.out_height) as row:
                    for first, n_blocks, size in blocks(g.c_out, self.n_channels):
                        with code.range(0, n_blocks) as block:
                            channel = code.add(first, code.mul(block, size))
                            self._row(own_bias, code.add(own_y, offset), mask, row, channel, size)

    def _of(self, base: Any, client: Any, size: int, n_bytes: Any) -> Any:
        return self.code.add(base, self.code.mul(client, self.code.mul(size, n_bytes)))

    def _row(self, bias: Any, y: Any, mask: Any, row: Any, channel: Any, size: int) -> None:
        """``size`` output channels of one row, tile after tile; the last tile may overlap the one before."""
        from evenload.gpu.llvm.field.floats import Sums

        f, code, g = self.f, self.code, self.g
        with code.range(0, -(-g.out_width // self.n_places)) as number:
            left = code.min(code.mul(number, self.n_places), g.out_width - self.n_places)
            sums = Sums(
                f, [start for start in self._starts(bias, channel, size) for _ in range(self.n_places)]
            )
            self._add_taps(sums, row, left, channel, size)
            place = code.add(code.mul(row, g.out_width), left)
            plane = g.out_height * g.out_width
            base = code.add(y, code.mul(code.add(code.mul(channel, plane), place), self.sample_bytes))
            values = sums.get()
            for o in range(size):
                target = code.add(base, code.mul(self.sample_bytes, o * plane))
                for t in range(self.n_places):
                    at = code.add(target, code.mul(self.sample_bytes, t))
                    f.store_first(values[o * self.n_places + t], at, mask)

    def _starts(self, bias: Any, channel: Any, size: int) -> list[Any]:
        f, code = self.f, self.code
        if bias is None:
            return [f.zero()] * size
        at = code.add(bias, code.mul(channel, f.n_bytes))
        return [f.spread(f.scalar(at, f.n_bytes * o)) for o in range(size)]

    def _add_taps(self, sums: Any, row: Any, left: Any, channel: Any, size: int) -> None:
        from evenload.gpu.llvm.conv.images import rows_inside

        f, code, g = self.f, self.code, self.g
        rows, columns = g.padded
        weights = code.add(self.table, code.mul(channel, f.n_bytes * g.c_in * g.taps))
        above, below = rows_inside(f, g.pad_height, row, g.height, g.k_height)
        with code.range(0, g.c_in) as c, code.range(above, below) as i:
            line = code.add(code.mul(code.add(code.mul(c, rows), row, i), columns), left)
            at = code.add(self.images, code.mul(line, f.row_bytes))
            tap = code.mul(code.add(code.mul(c, g.k_height), i), g.k_width * size)
            at_weight = code.add(weights, code.mul(tap, f.n_bytes))
            for j in range(g.k_width):
                places = [f.load(at, (j + t) * f.row_bytes) for t in range(self.n_places)]
                factors = [f.spread(f.scalar(at_weight, f.n_bytes * (j * size + o))) for o in range(size)]
                sums.add_products(factors, places)

    def _order(self, weight: Any, is_turned: bool) -> None:
        """[out, in, taps] -> blocks of output channels, each [in, taps, channels of the block]."""
        f, code, g = self.f, self.code, self.g
        for first, n_blocks, size in blocks(g.c_out, self.n_channels):
            with code.range(0, n_blocks) as block, code.range(0, g.c_in) as c, code.range(0, g.taps) as tap:
                channel = code.add(first, code.mul(block, size))
                at = code.add(
                    code.mul(channel, g.c_in * g.taps), code.mul(code.add(code.mul(c, g.taps), tap), size)
                )
                into = code.add(self.table, code.mul(at, f.n_bytes))
                for o in range(size):
                    own = code.add(channel, o)
                    pair = (
                        code.add(code.mul(c, g.c_out), own)
                        if is_turned
                        else code.add(code.mul(own, g.c_in), c)
                    )
                    own_tap = code.sub(g.taps - 1, tap) if is_turned else tap
                    source = code.add(code.mul(pair, g.taps), own_tap)
                    value = f.scalar(code.add(weight, code.mul(source, f.n_bytes)))
                    f.store_scalar(value, into, f.n_bytes * o)
