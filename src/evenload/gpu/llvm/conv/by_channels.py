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

from typing import Any

from llvmlite import ir

from evenload.gpu.llvm.conv.geometry import (
    Geometry,
    blocks,
    channel_run,
    channel_tile,
    rows_inside,
    weight_between,
    widest,
)  # fmt: skip
from evenload.gpu.llvm.field.floats import Floats, Sums

PRODUCTS_AHEAD = 4  # products of one sum that are written out in a turn of the loop
PLACES_AHEAD = 2  # neighbouring places in a turn of the loop of a weight's gradient
NEAR_BYTES = 32 << 10  # of rows whose products are added to all weights in turn: they stay in the first cache


def convolve(f: Floats, g: Geometry, *arguments: Any) -> None:
    """See the head of this module; for gradients of inputs ``g`` is the turned one, and the bias None."""
    _ChannelBody(f, g).emit(*arguments)


class _ChannelBody:
    """The body of a convolution kernel for geometry ``g``; without a bias, the weights are turned, too."""

    def __init__(self, f: Any, g: Geometry):
        self.f, self.code, self.g = f, f.code, g
        self.n_vectors = -(-g.c_out // f.lanes)
        self.size, self.n_places = channel_tile(self.n_vectors, g.out_width)

    def emit(self, x: Any, weight: Any, bias: Any, y: Any, scratch: Any, k: Any, n: Any) -> None:
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
                    f.store(values[v * self.n_places + t], base, offset, mask)

    def _add_taps(self, sums: Any, x: Any, row: Any, left: Any, vector: Any, size: int) -> None:
        f, code, g = self.f, self.code, self.g
        run = g.k_width * g.c_in
        ahead = widest(run, PRODUCTS_AHEAD)
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
                f.store(f.load(code.add(bias, v * f.row_bytes), mask=mask), into)

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
                lane = code.sub(code.sub(channel, begin), code.mul(block, width))
                start = code.add(begin * g.taps * g.c_in, code.mul(block, width * g.taps * g.c_in), lane)
                with code.range(0, g.taps) as tap, code.range(0, g.c_in) as c:
                    at = code.add(start, code.mul(code.add(code.mul(tap, g.c_in), c), width))
                    value = weight_between(f, g, weight, channel, c, tap, is_turned)
                    f.store(value, code.add(self.table, code.mul(at, f.n_bytes)))


class PaddedImage:
    """An image [height, width, channels] with zeros around it, in ``scratch``; without padding, as it is."""

    def __init__(self, f: Floats, g: Geometry, scratch: Any):
        self.f, self.code, self.g, self.scratch = f, f.code, g, scratch
        self.is_copied = bool(g.pad_height or g.pad_width)
        self.size = g.padded[0] * g.padded[1] * g.c_in
        self.n_bytes = f.n_bytes * self.size if self.is_copied else 0

    def clear(self) -> None:
        if self.is_copied:
            with self.code.range(0, self.size) as number:
                at = self.code.add(self.scratch, self.code.mul(number, self.f.n_bytes))
                self.f.store(ir.Constant(self.f.number, 0.0), at)

    def of(self, source: Any) -> Any:
        """The address of the padded image made of ``source``."""
        if not self.is_copied:
            return source
        f, code, g = self.f, self.code, self.g
        run = g.width * g.c_in
        with code.range(0, g.height) as row:
            at = code.add(source, code.mul(row, run * f.n_bytes))
            place = code.add(code.mul(code.add(row, g.pad_height), g.padded[1]), g.pad_width)
            into = code.add(self.scratch, code.mul(place, g.c_in * f.n_bytes))
            with code.range(0, run, f.lanes) as number:
                mask, offset = f.first(code.sub(run, number)), code.mul(number, f.n_bytes)
                f.store(f.load(code.add(at, offset), mask=mask), code.add(into, offset), mask=mask)
        return self.scratch


# --- gradients of weights ----------------------------------------------------------------------------
def weight_gradient(
    f: Floats, g: Geometry, x: Any, grad: Any, dweight: Any, dbias: Any, scratch: Any, k: Any, n: Any
) -> None:
    """See the head of this module; all but ``f`` and ``g`` are values of the kernel."""
    code = f.code
    image = PaddedImage(f, g, scratch)
    n_vectors = -(-g.c_out // f.lanes)
    table = code.add(scratch, image.n_bytes)
    body = _WeightSums(f, g, table, n_vectors)
    image.clear()
    with code.range(0, k) as client:
        with code.range(0, (g.taps * g.c_in + 1) * n_vectors) as number:
            f.store(f.zero(), code.add(table, code.mul(number, f.row_bytes)))
        with code.range(0, n) as i:
            sample = code.add(code.mul(client, n), i)
            own_x = image.of(code.add(x, code.mul(sample, g.c_in * g.height * g.width * f.n_bytes)))
            own_grad = code.add(grad, code.mul(sample, g.c_out * g.out_height * g.out_width * f.n_bytes))
            body.add(own_x, own_grad)
        body.write(
            code.add(dweight, code.mul(client, g.taps * g.c_in * g.c_out * f.n_bytes)),
            code.add(dbias, code.mul(client, g.c_out * f.n_bytes)),
        )


class _WeightSums:
    """The sums of a client, [taps, in, vectors of output channels], and behind them those of biases."""

    def __init__(self, f: Floats, g: Geometry, table: Any, n_vectors: int):
        self.f, self.code, self.g, self.table, self.n_vectors = f, f.code, g, table, n_vectors
        self.size, self.run = channel_run(n_vectors, g.k_width * g.c_in)
        row_bytes = f.n_bytes * (g.out_width * g.c_out + g.padded[1] * g.c_in)
        self.n_rows = max(1, min(g.out_height, NEAR_BYTES // row_bytes - g.k_height + 1))

    def add(self, x: Any, grad: Any) -> None:
        """Add the products of one sample, a few rows at a time."""
        code, g = self.code, self.g
        with code.range(0, g.out_height, self.n_rows) as top:
            end = code.min(code.add(top, self.n_rows), g.out_height)
            for first, n_blocks, size in blocks(self.n_vectors, self.size):
                with code.range(0, n_blocks) as block:
                    vector = code.add(first, code.mul(block, size))
                    with code.range(0, g.k_height) as i:
                        for begin, n_runs, length in blocks(g.k_width * g.c_in, self.run):
                            with code.range(0, n_runs) as number:
                                at = code.add(begin, code.mul(number, length))
                                self._tile(x, grad, top, end, vector, size, i, at, length)
                    self._biases(grad, top, end, vector, size)

    def _tile(
        self, x: Any, grad: Any, top: Any, end: Any, vector: Any, size: int, i: Any, at: Any, length: int
    ) -> None:
        """``length`` neighbours of a row of taps, from ``at``, times ``size`` vectors."""
        f, code, g = self.f, self.code, self.g
        entry = code.add(code.mul(i, g.k_width * g.c_in), at)
        into = code.add(self.table, code.mul(code.add(code.mul(entry, self.n_vectors), vector), f.row_bytes))
        stride = self.n_vectors * f.row_bytes
        sums = Sums(
            f, [f.load(into, t * stride + v * f.row_bytes) for v in range(size) for t in range(length)]
        )
        with code.range(top, end) as row:
            line = code.mul(code.add(row, i), g.padded[1] * g.c_in)
            own_x = code.add(x, code.mul(code.add(line, at), f.n_bytes))
            ahead = widest(g.out_width, PLACES_AHEAD)
            with code.range(0, g.out_width, ahead) as column:
                places = code.add(own_x, code.mul(column, g.c_in * f.n_bytes))
                grads = self._grads(grad, row, column, vector, size, ahead)
                for step in range(ahead):
                    factors = [grads(step, v) for v in range(size)]
                    for t in range(length):
                        place = f.spread(f.scalar(places, (step * g.c_in + t) * f.n_bytes))
                        sums.add_product(factors, place, t, length)
        values = sums.get()
        for v in range(size):
            for t in range(length):
                f.store(values[v * length + t], into, t * stride + v * f.row_bytes)

    def _grads(self, grad: Any, row: Any, column: Any, vector: Any, size: int, ahead: int) -> Any:
        f, code, g = self.f, self.code, self.g
        place = code.add(code.mul(row, g.out_width), column)
        channel = code.mul(vector, f.lanes)
        base = code.add(grad, code.mul(code.add(code.mul(place, g.c_out), channel), f.n_bytes))
        masks = [
            None if g.c_out % f.lanes == 0 else f.first(code.sub(g.c_out - v * f.lanes, channel))
            for v in range(size)
        ]

        def load(step: int, v: int) -> Any:
            offset = step * g.c_out * f.n_bytes + v * f.row_bytes
            return f.load(base, offset, masks[v])

        return load

    def _biases(self, grad: Any, top: Any, end: Any, vector: Any, size: int) -> None:
        f, code, g = self.f, self.code, self.g
        last = code.add(vector, g.taps * g.c_in * self.n_vectors)
        into = code.add(self.table, code.mul(last, f.row_bytes))
        sums = Sums(f, [f.load(into, v * f.row_bytes) for v in range(size)])
        with code.range(top, end) as row, code.range(0, g.out_width) as column:
            grads = self._grads(grad, row, column, vector, size, 1)
            sums.add_product([grads(0, v) for v in range(size)], f.ones(), 0, 1)
        for v, value in enumerate(sums.get()):
            f.store(value, into, v * f.row_bytes)

    def write(self, dweight: Any, dbias: Any) -> None:
        """Write the sums in torch's order: weights [out, in, taps], biases [out]."""
        f, code, g = self.f, self.code, self.g
        width = self.n_vectors * f.lanes
        with code.range(0, g.c_out) as o:
            with code.range(0, g.c_in) as c, code.range(0, g.taps) as tap:
                source = code.add(code.mul(code.add(code.mul(tap, g.c_in), c), width), o)
                value = f.scalar(code.add(self.table, code.mul(source, f.n_bytes)))
                at = code.add(code.mul(code.add(code.mul(o, g.c_in), c), g.taps), tap)
                f.store(value, code.add(dweight, code.mul(at, f.n_bytes)))
            source = code.add(g.taps * g.c_in * width, o)
            value = f.scalar(code.add(self.table, code.mul(source, f.n_bytes)))
            f.store(value, code.add(dbias, code.mul(o, f.n_bytes)))
