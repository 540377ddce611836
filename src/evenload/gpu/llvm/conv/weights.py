"""Gradients of a convolution's weights: sums over places and samples, in registers for a row of taps."""

from typing import Any

from llvmlite import ir

from evenload.gpu.llvm.conv.geometry import Geometry, blocks, most_sums, widest
from evenload.gpu.llvm.conv.images import clear, pack, rows_inside
from evenload.gpu.llvm.field.floats import Floats, Sums

__all__ = ["weight_gradient"]

AHEAD = 4  # neighbouring places in one turn of the loop: their inputs overlap


def weight_gradient(
    f: Floats, g: Geometry, x: Any, grad: Any, dweight: Any, dbias: Any, scratch: Any, k: Any, n: Any
) -> None:
    """See ``conv_kernels``; all but ``f`` and ``g`` are values of the kernel."""
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
        f.store_scalar(builder.fadd(f.total(value), before), address, offset)
