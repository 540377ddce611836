"""Convolutions of many clients, each with its own weights: a vector holds one place of many output channels.

    forward(x, weight, bias, y, scratch, clients, samples)
    input_gradient(grad, weight, dx, scratch, clients, samples)
    weight_gradient(x, grad, dweight, dbias, scratch, clients, samples)

Images are [clients, samples, height, width, channels], the channels innermost; weights are as torch has them,
a set per client; all float32 or all float64. This is for layers whose channels fill vectors, where batches
do not, or where a block of samples would not stay near a core.

A tile of outputs, so many vectors of channels times so many neighbouring places, stays in registers while its
products run by. The channels of neighbouring places are neighbours in memory, so a row of taps is one run of
numbers. Vectors that channels do not fill are filled up with zeros in ``scratch``.
"""

import functools
from typing import Any

from evenload.gpu.llvm import program
from evenload.gpu.llvm.conv.geometry import Geometry, blocks, channel_tile, widest
from evenload.gpu.llvm.program import Program, Recipe

__all__ = ["SIGNATURES", "channel_program"]

SIGNATURES = {"forward": 7, "input_gradient": 6, "weight_gradient": 7}
AHEAD = 4  # products of one sum that are written out in a turn of the loop
PIECES = (
    "conv.channel_kernels",
    "conv.channel_weights",
    "conv.images",
    "conv.geometry",
    "field.floats",
    "ir_builder",
)


@functools.cache
def channel_program(g: Geometry, lanes: int, n_bytes: int) -> Program:
    """The kernels for one geometry: ``lanes`` channels in a vector, numbers of ``n_bytes``.

    Raises MissingExtra.
    """
    numbers = (g.c_in, g.c_out, g.height, g.width, g.k_height, g.k_width, g.pad_height, g.pad_width)
    name = "channels-" + "-".join(map(str, (*numbers, lanes, n_bytes)))
    build = functools.partial(channel_ir, g, lanes, n_bytes)
    sources = program.sources(*(f"llvm.{piece}" for piece in PIECES))
    return program.load(Recipe(name, SIGNATURES, build, sources))


def channel_ir(g: Geometry, lanes: int, n_bytes: int) -> str:
    """The LLVM IR of the kernels."""
    from llvmlite import ir

    from evenload.gpu.llvm.conv.channel_weights import weight_gradient
    from evenload.gpu.llvm.field.floats import Floats
    from evenload.gpu.llvm.ir_builder import add_kernel

    def forward(code: Any, x: Any, weight: Any, bias: Any, y: Any, scratch: Any, k: Any, n: Any) -> None:
        _ChannelBody(Floats(code, lanes, n_bytes), g).emit(x, weight, bias, y, scratch, k, n)

    def input_gradient(code: Any, grad: Any, weight: Any, dx: Any, scratch: Any, k: Any, n: Any) -> None:
        _ChannelBody(Floats(code, lanes, n_bytes), g.turned()).emit(grad, weight, None, dx, scratch, k, n)

    def of_weights(code: Any, *arguments: Any) -> None:
        weight_gradient(Floats(code, lanes, n_bytes), g, *arguments)

    module = ir.Module("channels")
    for name, body in zip(SIGNATURES, (forward, input_gradient, of_weights), strict=True):
        add_kernel(module, name, SIGNATURES[name], body)
    return str(module)


class _ChannelBody:
    """The body of a convolution kernel for geometry ``g``.

    For gradients of inputs ``g`` is the turned one; there is no bias then, and the weights are turned, too.
    """

    def __init__(self, f: Any, g: Geometry):
        self.f, self.code, self.g = f, f.code, g
        self.n_vectors = -(-g.c_out // f.lanes)
        self.size, self.n_places = channel_tile(self.n_vectors, g.out_width)

    def emit(self, x: Any, weight: Any, bias: Any, y: Any, scratch: Any, k: Any, n: Any) -> None:
        from evenload.gpu.llvm.conv.channel_weights import PaddedImage

        f, code, g = self.f, self.code, self.g
        image = PaddedImage(f, g, scratch)
        self.table = code.add(scratch, image.n_bytes)
        self.biases = code.add(self.table, g.c_in * g.taps * self.n_vectors * f.row_bytes)
        image.clear()
        with code.range(0, k) as client:
            own_weight = code.add(weight, code.mul(client, g.c_in * g.c_out * g.taps * f.n_bytes))
            self._order(own_weight, is_turned=bias is None)
            self._start(None if bias is None else code.add(bias, code.mul(client, g.c_out * f.n_bytes)))
            with code.range(0, n) as i:
                sample = code.add(code.mul(client, n), i)
                own_x = image.of(code.add(x, code.mul(sample, g.c_in * g.height * g.width * f.n_bytes)))
                own_y = code.add(y, code.mul(sample, g.c_out * g.out_height * g.out_width * f.n_bytes))
                for first, n_blocks, size in blocks(self.n_vectors, self.size):
                    with code.range(0, n_blocks) as block, code.range(0, g.out_height) as row:
                        vector = code.add(first, code.mul(block, size))
                        self._row(own_x, own_y, row, vector, size)

    def _row(self, x: Any, y: Any, row: Any, vector: Any, size: int) -> None:
        """``size`` vectors of one row, tile after tile; the last tile may overlap the one before."""
        from evenload.gpu.llvm.field.floats import Sums

        f, code, g = self.f, self.code, self.g
        with code.range(0, -(-g.out_width // self.n_places)) as number:
            left = code.min(code.mul(number, self.n_places), g.out_width - self.n_places)
            bias = code.add(self.biases, code.mul(vector, f.row_bytes))
            starts = [f.load(bias, v * f.row_bytes) for v in range(size)]
            sums = Sums(f, [start for start in starts for _ in range(self.n_places)])
            self._add_taps(sums, x, row, left, vector, size)
            place = code.add(code.mul(row, g.out_width), left)
            channel = code.mul(vector, f.lanes)
            base = code.add(y, code.mul(code.add(code.mul(place, g.c_out), channel), f.n_bytes))
            values = sums.get()
            for v in range(size):
                mask = None if g.c_out % f.lanes == 0 else f.first(code.sub(g.c_out - v * f.lanes, channel))
                for t in range(self.n_places):
                    offset = t * g.c_out * f.n_bytes + v * f.row_bytes
                    if mask is None:
                        f.store(values[v * self.n_places + t], base, offset)
                    else:
                        f.store_first(values[v * self.n_places + t], code.add(base, offset), mask)

    def _add_taps(self, sums: Any, x: Any, row: Any, left: Any, vector: Any, size: int) -> None:
        from evenload.gpu.llvm.conv.images import rows_inside

        f, code, g = self.f, self.code, self.g
        run = g.k_width * g.c_in
        ahead = widest(run, AHEAD)
        above, below = rows_inside(f, g.pad_height, row, g.height, g.k_height)
        with code.range(above, below) as i, code.range(0, run, ahead) as at:
            line = code.add(code.mul(code.add(row, i), g.padded[1]), left)
            places = code.add(x, code.mul(code.add(code.mul(line, g.c_in), at), f.n_bytes))
            entry = code.add(
                code.mul(vector, g.taps * g.c_in), code.mul(code.add(code.mul(i, run), at), size)
            )
            weights = code.add(self.table, code.mul(entry, f.row_bytes))
            for step in range(ahead):
                factors = [f.load(weights, (step * size + v) * f.row_bytes) for v in range(size)]
                for t in range(self.n_places):
                    place = f.spread(f.scalar(places, (t * g.c_in + step) * f.n_bytes))
                    sums.add_product(factors, place, t, self.n_places)

    def _start(self, bias: Any) -> None:
        """The vectors that sums begin with."""
        f, code = self.f, self.code
        for v in range(self.n_vectors):
            into = code.add(self.biases, v * f.row_bytes)
            if bias is None:
                f.store(f.zero(), into)
            else:
                mask = f.first(code.const(self.g.c_out - v * f.lanes))
                f.store(f.load_first(code.add(bias, v * f.row_bytes), mask), into)

    def _order(self, weight: Any, is_turned: bool) -> None:
        """[out, in, taps] -> blocks of vectors of output channels, each [taps, in, vectors of the block]."""
        f, code, g = self.f, self.code, self.g
        if g.c_out % f.lanes:
            with code.range(0, g.c_in * g.taps * self.n_vectors) as number:
                f.store(f.zero(), code.add(self.table, code.mul(number, f.row_bytes)))
        for first, n_blocks, size in blocks(self.n_vectors, self.size):
            begin, width = first * f.lanes, size * f.lanes
            with code.range(begin, min(g.c_out, (first + n_blocks * size) * f.lanes)) as channel:
                block = code.ir.udiv(code.sub(channel, begin), code.const(width))
                lane = code.sub(
                    channel,
                    begin,
                )
                lane = code.sub(lane, code.mul(block, width))
                start = code.add(begin * g.taps * g.c_in, code.mul(block, width * g.taps * g.c_in), lane)
                with code.range(0, g.taps) as tap, code.range(0, g.c_in) as c:
                    pair = (
                        code.add(code.mul(c, g.c_out), channel)
                        if is_turned
                        else code.add(code.mul(channel, g.c_in), c)
                    )
                    own_tap = code.sub(g.taps - 1, tap) if is_turned else tap
                    source = code.add(code.mul(pair, g.taps), own_tap)
                    at = code.add(start, code.mul(code.add(code.mul(tap, g.c_in), c), width))
                    value = f.scalar(code.add(weight, code.mul(source, f.n_bytes)))
                    f.store_scalar(value, code.add(self.table, code.mul(at, f.n_bytes)))
