"""Products of many clients' small matrices, added to what is there; made for one shape.

    add(left, right, into, clients)      into[k] += left[k] @ right[k]

left [clients, rows, depth] lies in any order; right [clients, depth, columns] and into [clients, rows,
columns] have their columns side by side; all float32 or all float64. A tile of sums, some rows times some
vectors of columns, stays in registers while the depth runs by, and is added once, at its end.
"""

import functools
from dataclasses import dataclass
from typing import Any

from evenload.gpu.llvm import program
from evenload.gpu.llvm.program import Program, Recipe

__all__ = ["ProductShape", "product_program"]

SIGNATURES = {"add": 4}
PIECES = ("products", "conv.geometry", "field.floats", "ir_builder")


@dataclass(frozen=True, slots=True)
class ProductShape:
    """The shape of a product of each client, and the steps through memory, counted in numbers.

    left   from one client, row and place along the depth to the next
    right  from one client and place along the depth to the next
    into   from one client and row to the next
    """

    rows: int
    columns: int
    depth: int
    left: tuple[int, int, int]
    right: tuple[int, int]
    into: tuple[int, int]


@functools.cache
def product_program(shape: ProductShape, lanes: int, n_bytes: int) -> Program:
    """The kernel for one shape: ``lanes`` columns to a vector, of ``n_bytes`` each. Raises MissingExtra."""
    steps = (shape.rows, shape.columns, shape.depth, *shape.left, *shape.right, *shape.into)
    name = "product-" + "-".join(map(str, (*steps, lanes, n_bytes)))
    build = functools.partial(product_ir, shape, lanes, n_bytes)
    return program.load(Recipe(name, SIGNATURES, build, program.sources(*(f"llvm.{p}" for p in PIECES))))


def product_ir(shape: ProductShape, lanes: int, n_bytes: int) -> str:
    """The LLVM IR of the kernel."""
    from llvmlite import ir

    from evenload.gpu.llvm.field.floats import Floats
    from evenload.gpu.llvm.ir_builder import add_kernel

    def emit(code: Any, *arguments: Any) -> None:
        _ProductBody(Floats(code, lanes, n_bytes), shape).emit(*arguments)

    module = ir.Module("product")
    add_kernel(module, "add", SIGNATURES["add"], emit)
    return str(module)


class _ProductBody:
    """The body of the kernel for one shape."""

    def __init__(self, f: Any, shape: ProductShape):
        from evenload.gpu.llvm.conv.geometry import channel_tile

        self.f, self.code, self.shape = f, f.code, shape
        self.n_vectors = -(-shape.columns // f.lanes)
        self.width, self.height = channel_tile(self.n_vectors, shape.rows)

    def emit(self, left: Any, right: Any, into: Any, k: Any) -> None:
        from evenload.gpu.llvm.conv.geometry import blocks

        code, shape = self.code, self.shape
        with code.range(0, k) as client:
            bases = ((left, shape.left), (right, shape.right), (into, shape.into))
            own_left, own_right, own_into = (self._at(base, client, step[0]) for base, step in bases)
            for first, n_blocks, height in blocks(shape.rows, self.height):
                with (
                    code.range(0, self.n_vectors // self.width) as across,
                    code.range(0, n_blocks) as block,
                ):
                    column = code.mul(across, self.width * self.f.lanes)
                    row = code.add(first, code.mul(block, height))
                    target = self._at(self._at(own_into, column, 1), row, shape.into[1])
                    sums = self._sums(
                        self._at(own_left, row, shape.left[1]), self._at(own_right, column, 1), column, height
                    )
                    self._add(sums, target, column, height)

    def _sums(self, left: Any, right: Any, column: Any, height: int) -> list[Any]:
        """The products of ``height`` rows with ``width`` vectors of columns."""
        from evenload.gpu.llvm.field.floats import Sums

        f, shape = self.f, self.shape
        masks = self._masks(column)
        sums = Sums(f, [f.zero()] * (height * self.width))
        with self.code.range(0, shape.depth) as place:
            line, factors = self._at(right, place, shape.right[1]), self._at(left, place, shape.left[2])
            vectors = [self._load(line, v * f.row_bytes, mask) for v, mask in enumerate(masks)]
            steps = [i * shape.left[1] * f.n_bytes for i in range(height)]
            sums.add_products([f.spread(f.scalar(factors, step)) for step in steps], vectors)
        return sums.get()

    def _add(self, sums: list[Any], target: Any, column: Any, height: int) -> None:
        f = self.f
        masks = self._masks(column)
        for i in range(height):
            for v, mask in enumerate(masks):
                offset = i * self.shape.into[1] * f.n_bytes + v * f.row_bytes
                value = self.code.ir.fadd(self._load(target, offset, mask), sums[i * self.width + v])
                if mask is None:
                    f.store(value, target, offset)
                else:
                    f.store_first(value, self.code.add(target, offset), mask)

    def _masks(self, column: Any) -> list[Any]:
        """Of each vector from ``column`` on, the lanes that are columns; None if all vectors are full."""
        f, n = self.f, self.shape.columns
        if n % f.lanes == 0:
            return [None] * self.width
        return [f.first(self.code.sub(n - v * f.lanes, column)) for v in range(self.width)]

    def _load(self, address: Any, offset: int, mask: Any) -> Any:
        if mask is None:
            return self.f.load(address, offset)
        return self.f.load_first(self.code.add(address, offset), mask)

    def _at(self, base: Any, number: Any, step: int) -> Any:
        return self.code.add(base, self.code.mul(number, step * self.f.n_bytes))
