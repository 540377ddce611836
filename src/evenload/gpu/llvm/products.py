"""Products of many clients' small matrices, made for one shape.

    multiply(left, right, into, clients, alive)      into[k] (+)= left[k] @ right[k]

left [clients, rows, depth] lies in any order; right [clients, depth, columns] has its columns or its depth
side by side, and into [clients, rows, columns] its columns; all float32 or all float64. ``alive`` holds a
byte for each client, and the products of those whose byte is 0 are left out; or it is 0, and none is.

A tile of sums, some rows times some vectors of columns, stays in registers while the depth runs by, and is
stored once, at its end. Where the depth of right lies side by side, its columns of a tile are turned first,
into a panel that all rows then use.
"""

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from evenload.gpu.llvm import program
from evenload.gpu.llvm.conv.geometry import blocks, channel_tile
from evenload.gpu.llvm.program import Program

SOURCES = ("llvm.products", "llvm.conv.geometry", "llvm.field.floats", "llvm.ir_builder")


@dataclass(frozen=True, slots=True)
class ProductShape:
    """The shape of a product of each client, and the steps through memory, counted in numbers.

    left       from one client, row and place along the depth to the next
    right      from one client and place along the depth to the next; if it ``is_turned``, from one client and
               column to the next, as then its depth lies side by side
    into       from one client and row to the next
    adds       the product is added to what is there
    """

    rows: int
    columns: int
    depth: int
    left: tuple[int, int, int]
    right: tuple[int, int]
    into: tuple[int, int]
    is_turned: bool = False
    adds: bool = True


@functools.cache
def product_program(shape: ProductShape, lanes: int, n_bytes: int) -> Program:
    """The kernel for one shape: ``lanes`` columns to a vector, of ``n_bytes`` each. Raises MissingExtra."""
    steps = (shape.rows, shape.columns, shape.depth, *shape.left, *shape.right, *shape.into)
    numbers = (*steps, int(shape.is_turned), int(shape.adds), lanes, n_bytes)

    def multiply(code: Any, *arguments: Any) -> None:
        from evenload.gpu.llvm.field.floats import Floats

        _ProductBody(Floats(code, lanes, n_bytes), shape).emit(*arguments)

    bodies = SimpleNamespace(multiply=multiply)
    return program.made_for("product", numbers, {"multiply": 5}, lambda: bodies, SOURCES)


def panel_bytes(shape: ProductShape, lanes: int, n_bytes: int) -> int:
    """Bytes of right that are read again for each tile of rows."""
    width, _ = channel_tile(-(-shape.columns // lanes), shape.rows)
    return -(-shape.depth // lanes) * lanes * width * lanes * n_bytes


class _ProductBody:
    """The body of the kernel for one shape."""

    def __init__(self, f: Any, shape: ProductShape):
        self.f, self.code, self.shape = f, f.code, shape
        self.n_vectors = -(-shape.columns // f.lanes)
        self.width, self.height = channel_tile(self.n_vectors, shape.rows)

    def emit(self, left: Any, right: Any, into: Any, k: Any, alive: Any) -> None:
        code, shape = self.code, self.shape
        with self._clients(k, alive) as client:
            bases = ((left, shape.left), (right, shape.right), (into, shape.into))
            own_left, own_right, own_into = (self._at(base, client, step[0]) for base, step in bases)
            with code.range(0, self.n_vectors // self.width) as across:
                column = code.mul(across, self.width * self.f.lanes)
                panel, step = self._panel(own_right, column)
                for first, n_blocks, height in blocks(shape.rows, self.height):
                    with code.range(0, n_blocks) as block:
                        row = code.add(first, code.mul(block, height))
                        target = self._at(self._at(own_into, column, 1), row, shape.into[1])
                        lines = self._at(own_left, row, shape.left[1])
                        self._store(self._sums(lines, panel, step, column, height), target, column, height)

    @contextmanager
    def _clients(self, k: Any, alive: Any) -> Iterator[Any]:
        """For each client that is alive."""
        from evenload.gpu.llvm.ir_builder import I8

        code = self.code
        ones = code.stack(8)
        code.store(code.const(1, I8), ones)
        is_all = code.ir.icmp_signed("==", alive, code.const(0))
        flags, step = (
            code.ir.select(is_all, ones, alive),
            code.ir.select(is_all, code.const(0), code.const(1)),
        )
        with code.range(0, k) as client:
            flag = code.load_int(flags, code.mul(client, step), I8)
            with code.when(code.ir.icmp_signed("!=", flag, code.const(0))):
                yield client

    def _panel(self, right: Any, column: Any) -> tuple[Any, int]:
        """Where the vectors of columns from ``column`` on lie, and the numbers from one place to the next."""
        f, code, shape = self.f, self.code, self.shape
        if not shape.is_turned:
            return self._at(right, column, 1), shape.right[1]
        n_blocks, step = -(-shape.depth // f.lanes), self.width * f.lanes
        panel = code.scratch("panel", n_blocks * f.lanes * step * f.n_bytes)
        with code.range(0, n_blocks) as block:
            first = code.mul(block, f.lanes)
            mask = f.first(code.sub(shape.depth, first)) if shape.depth % f.lanes else None
            for v in range(self.width):
                # Beyond the last column it is taken again: nothing of these lanes is stored in the end.
                places = (
                    code.min(code.add(column, v * f.lanes + i), shape.columns - 1) for i in range(f.lanes)
                )
                lines = [self._at(self._at(right, place, shape.right[1]), first, 1) for place in places]
                turned = self._turned([f.load(line, mask=mask) for line in lines])
                for i, vector in enumerate(turned):
                    target = self._at(panel, first, step)
                    f.store(vector, target, (i * step + v * f.lanes) * f.n_bytes)
        return panel, step

    def _turned(self, vectors: Sequence[Any]) -> list[Any]:
        """The transpose of as many vectors as each has lanes: all are interleaved with those half way on."""
        n, turned = len(vectors), list(vectors)
        orders = [[at + lane // 2 + n * (lane % 2) for lane in range(n)] for at in (0, n // 2)]
        for _ in range(n.bit_length() - 1):
            turned = [
                self.code.shuffle(turned[i], turned[i + n // 2], order)
                for i in range(n // 2)
                for order in orders
            ]
        return turned

    def _sums(self, left: Any, panel: Any, step: int, column: Any, height: int) -> list[Any]:
        """The products of ``height`` rows with ``width`` vectors of columns."""
        from evenload.gpu.llvm.field.floats import Sums

        f, shape = self.f, self.shape
        masks = [None] * self.width if shape.is_turned else self._masks(column)
        sums = Sums(f, [f.zero()] * (height * self.width))
        with self.code.range(0, shape.depth) as place:
            line, factors = self._at(panel, place, step), self._at(left, place, shape.left[2])
            vectors = [f.load(line, v * f.row_bytes, mask) for v, mask in enumerate(masks)]
            steps = [i * shape.left[1] * f.n_bytes for i in range(height)]
            sums.add_products([f.spread(f.scalar(factors, step)) for step in steps], vectors)
        return sums.get()

    def _store(self, sums: list[Any], target: Any, column: Any, height: int) -> None:
        f = self.f
        masks = self._masks(column)
        for i in range(height):
            for v, mask in enumerate(masks):
                offset = i * self.shape.into[1] * f.n_bytes + v * f.row_bytes
                value = sums[i * self.width + v]
                if self.shape.adds:
                    value = self.code.ir.fadd(f.load(target, offset, mask), value)
                f.store(value, target, offset, mask)

    def _masks(self, column: Any) -> list[Any]:
        """For each vector from ``column`` on, the lanes that are columns; None if all vectors are full."""
        f, n = self.f, self.shape.columns
        if n % f.lanes == 0:
            return [None] * self.width
        return [f.first(self.code.sub(n - v * f.lanes, column)) for v in range(self.width)]

    def _at(self, base: Any, number: Any, step: int) -> Any:
        return self.code.add(base, self.code.mul(number, step * self.f.n_bytes))
