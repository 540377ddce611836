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

from typing import Any

from llvmlite import ir

from evenload.gpu.llvm.conv.geometry import (
    Geometry,
    blocks,
    most_sums,
    rows_inside,
    tile,
    weight_between,
    widest,
)
from evenload.gpu.llvm.field.floats import Floats, Sums

AHEAD = 4  # neighbouring places in one turn of the loop of a weight's gradient: their inputs overlap


def convolve(f: Floats, g: Geometry, *arguments: Any) -> None:
    """See the head of this module; for gradients of inputs ``g`` is the turned one, and the bias None."""
    _ConvolutionBody(f, g).emit(*arguments)


class _ConvolutionBody:
    """The body of a convolution kernel for geometry ``g``; without a bias, the weights are turned, too."""

    def __init__(self, f: Any, g: Geometry):
        self.f, self.code, self.g = f, f.code, g
        self.n_channels, self.n_places = tile(g.c_out, g.out_width)

    def emit(self, x: Any, weight: Any, bias: Any, y: Any, scratch: Any, k: Any, n: Any) -> None:
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
                    f.store(values[o * self.n_places + t], at, mask=mask)

    def _starts(self, bias: Any, channel: Any, size: int) -> list[Any]:
        f, code = self.f, self.code
        if bias is None:
            return [f.zero()] * size
        at = code.add(bias, code.mul(channel, f.n_bytes))
        return [f.spread(f.scalar(at, f.n_bytes * o)) for o in range(size)]

    def _add_taps(self, sums: Any, row: Any, left: Any, channel: Any, size: int) -> None:
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
                    value = weight_between(f, g, weight, code.add(channel, o), c, tap, is_turned)
                    f.store(value, into, f.n_bytes * o)


# --- images: each place is a vector of samples, zeros around -----------------------------------------
def clear(f: Floats, images: Any, g: Geometry) -> None:
    """Write zeros into the padded images, if there is padding; ``pack`` writes the rest."""
    if not (g.pad_height or g.pad_width):
        return
    rows, columns = g.padded
    with f.code.range(0, g.c_in * rows * columns) as place:
        f.store(f.zero(), f.code.add(images, f.code.mul(place, f.row_bytes)))


def pack(f: Floats, source: Any, target: Any, sample_bytes: Any, mask: Any, g: Geometry) -> None:
    """Copy images [c_in, height, width, samples], ``sample_bytes`` a place, into padded ones of a block."""
    code, (rows, columns) = f.code, g.padded
    with code.range(0, g.c_in) as c, code.range(0, g.height) as row:
        line = code.mul(code.add(code.mul(c, g.height), row), g.width)
        at = code.add(source, code.mul(line, sample_bytes))
        place = code.add(code.mul(code.add(code.mul(c, rows), row, g.pad_height), columns), g.pad_width)
        into = code.add(target, code.mul(place, f.row_bytes))
        with code.range(0, g.width) as column:
            value = f.load(code.add(at, code.mul(column, sample_bytes)), mask=mask)
            f.store(value, code.add(into, code.mul(column, f.row_bytes)))


# --- gradients of weights: sums over places and samples, in registers for a row of taps ---------------
def weight_gradient(
    f: Floats, g: Geometry, x: Any, grad: Any, dweight: Any, dbias: Any, scratch: Any, k: Any, n: Any
) -> None:
    """See the head of this module; all but ``f`` and ``g`` are values of the kernel."""
    code = f.code
    outputs = Geometry(g.c_out, 1, g.out_height, g.out_width, 1, 1, 0, 0)
    planes = code.add(scratch, f.row_bytes * g.c_in * g.padded[0] * g.padded[1])
    sample_bytes = code.mul(n, f.n_bytes)
    clear(f, scratch, g)
    with code.range(0, k) as client:
        own_x = code.add(x, code.mul(client, code.mul(sample_bytes, g.c_in * g.height * g.width)))
        own_grad = code.add(
            grad, code.mul(client, code.mul(sample_bytes, g.c_out * g.out_height * g.out_width))
        )
        own_weight = code.add(dweight, code.mul(client, f.n_bytes * g.c_in * g.c_out * g.taps))
        own_bias = code.add(dbias, code.mul(client, f.n_bytes * g.c_out))
        with code.range(0, n, f.lanes) as start:
            mask, offset = f.first(code.sub(n, start)), code.mul(start, f.n_bytes)
            pack(f, code.add(own_x, offset), scratch, sample_bytes, mask, g)
            pack(f, code.add(own_grad, offset), planes, sample_bytes, mask, outputs)
            block = _Block(f, g, scratch, planes, code.ir.icmp_signed("==", start, code.const(0)))
            block.add_weights(own_weight)
            block.add_biases(own_bias)


class _Block:
    """A block of samples: padded images, gradients of outputs, and whether it is the client's first."""

    def __init__(self, f: Floats, g: Geometry, images: Any, planes: Any, is_first: Any):
        self.f, self.code, self.g = f, f.code, g
        self.images, self.planes, self.is_first = images, planes, is_first

    def add_weights(self, dweight: Any) -> None:
        code, g = self.code, self.g
        for first, n_blocks, size in blocks(g.c_out, widest(g.c_out, most_sums() // g.k_width)):
            with code.range(0, n_blocks) as block:
                channel = code.add(first, code.mul(block, size))
                with code.range(0, g.c_in) as c, code.range(0, g.k_height) as i:
                    self._add_row(dweight, channel, size, c, i)

    def add_biases(self, dbias: Any) -> None:
        f, code = self.f, self.code
        area = self.g.out_height * self.g.out_width
        with code.range(0, self.g.c_out) as o:
            sums = Sums(f, [f.zero()])
            with code.range(0, area) as place:
                at = code.add(self.planes, code.mul(code.add(code.mul(o, area), place), f.row_bytes))
                sums.add_products([f.load(at)], [f.ones()])
            self._collect(sums.get()[0], code.add(dbias, code.mul(o, f.n_bytes)), 0)

    def _add_row(self, dweight: Any, channel: Any, size: int, c: Any, i: Any) -> None:
        """Row ``i`` of the taps between input channel ``c`` and ``size`` output channels."""
        f, code, g = self.f, self.code, self.g
        (rows, columns), area = g.padded, g.out_height * g.out_width
        ahead = widest(g.out_width, AHEAD)
        sums = Sums(f, [f.zero()] * (size * g.k_width))
        above, below = rows_inside(f, g.pad_height, i, g.height, g.out_height)
        with code.range(above, below) as row, code.range(0, g.out_width, ahead) as left:
            line = code.add(code.mul(code.add(code.mul(c, rows), row, i), columns), left)
            place = code.add(code.mul(channel, area), code.mul(row, g.out_width), left)
            at_image = code.add(self.images, code.mul(line, f.row_bytes))
            at_plane = code.add(self.planes, code.mul(place, f.row_bytes))
            for t in range(ahead):
                grads = [f.load(at_plane, (o * area + t) * f.row_bytes) for o in range(size)]
                places = [f.load(at_image, (j + t) * f.row_bytes) for j in range(g.k_width)]
                sums.add_products(grads, places)
        values = sums.get()
        tap = code.add(code.mul(code.add(code.mul(channel, g.c_in), c), g.k_height), i)
        at = code.add(dweight, code.mul(tap, f.n_bytes * g.k_width))
        for o in range(size):
            for j in range(g.k_width):
                self._collect(values[o * g.k_width + j], at, f.n_bytes * (o * g.c_in * g.taps + j))

    def _collect(self, value: Any, address: Any, offset: int) -> None:
        """The sum of the lanes, added to what the client's earlier blocks gave."""
        f, builder = self.f, self.code.ir
        before = builder.select(self.is_first, ir.Constant(f.number, 0.0), f.scalar(address, offset))
        f.store(builder.fadd(f.total(value), before), address, offset)
