"""Number-theoretic transforms on Fr, and the odd-coset step of Groth16.

Both directions use decimation-in-time butterflies (u + w*v, u - w*v), so that at a level with head-room no
sum is ever reduced: a value grows by less than 2p a layer and only products bring it back (27 layers: below
62p < 64p).

    scatter   natural order -> bit-reversed, one twiddle for each group of a layer
    gather    bit-reversed -> natural order, one twiddle for each position in a group

At a level with 8 lanes, element 8*k + l of a tile of 64 lies in block k, lane l; the three layers inside a
block work on the transposed tile, which ``scatter`` leaves transposed and ``gather`` takes that way.

Source: Cooley and Tukey (1965); the bit-reversed twiddle order as in Seiler, "Faster AVX2 optimized NTT
multiplication for Ring-LWE lattice cryptography" (2018).
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from evenload.gpu.field import FR
from evenload.gpu.llvm.field.arith import Element, PrimeField
from evenload.gpu.llvm.ir_builder import I64, Code

CHUNK_BLOCKS = {1: 4096, 8: 1024}
"""Blocks that are taken through all their layers at once, by lanes: about a third of a level-2 cache."""
_GROWN = 62  # bound of values inside a transform, where the level is lazy


class TransformKernels:
    """The transforms' kernels at one level, as LLVM code. ``size`` below is the number of blocks, a power
    of two."""

    def __init__(self, level: type):
        self.level, self.lanes = level, level.lanes
        self.bytes = level.block_bytes
        self.twiddle_bytes = level.block_bytes // level.lanes
        self.chunk = CHUNK_BLOCKS[self.lanes]

    def field(self, code: Code) -> PrimeField:
        return PrimeField(code, self.level, FR)

    # --- butterflies ----------------------------------------------------------------------------
    def _load(self, f: PrimeField, address: Any) -> Element:
        return f.load(address, bound=_GROWN, is_tidy=False) if self.level.is_lazy else f.load(address)

    def _store(self, f: PrimeField, a: Element, address: Any) -> None:
        f.store_raw(a, address) if self.level.is_lazy else f.store(a, address)

    def _butterfly(self, f: PrimeField, u: Element, v: Element, twiddle: Element) -> tuple[Element, Element]:
        t = f.multiply_inline(v, twiddle)
        u = Element(u.limbs, min(u.bound, _GROWN), u.is_tidy)  # the growth over all layers is bounded above
        return f.add(u, t), f.subtract(u, t)

    def _splat(self, code: Code, f: PrimeField, address: Any) -> Element:
        if self.lanes == 1:
            return f.load(address, bound=1)
        kind = ir.VectorType(I64, 8)
        limbs = range(self.level.n_limbs)
        return Element([code.spread(code.load(address, I64, 8 * k, align=8), kind) for k in limbs], 1)

    def _block(self, code: Code, base: Any, k: Any) -> Any:
        return code.add(base, code.mul(k, self.bytes))

    def _four(self, code: Code, f: PrimeField, base: Any, quarter: Any) -> tuple[list[Any], list[Element]]:
        addresses = [self._block(code, base, code.mul(quarter, k)) for k in range(4)]
        return addresses, [self._load(f, address) for address in addresses]

    # --- scatter --------------------------------------------------------------------------------
    def scatter(self, code: Code, blocks: Any, size: Any, group_twiddles: Any, tile_twiddles: Any) -> None:
        """group_twiddles: one element for each group, bit-reversed; tile_twiddles: 7 blocks for each tile."""
        layers = code.function(f"scatter_layers_{self.level.name}", 5, self._scatter_layers)
        chunk = code.min(size, self.chunk)
        code.call(layers, blocks, size, chunk, group_twiddles, 0)
        with code.range(0, code.ir.sdiv(size, chunk)) as c:
            at = self._block(code, blocks, code.mul(c, chunk))
            code.call(layers, at, chunk, 1, group_twiddles, c)
            if self.lanes > 1:
                n_tiles = code.ir.sdiv(chunk, code.const(8))
                with code.range(0, n_tiles) as t:
                    tile = code.add(code.mul(c, n_tiles), t)
                    twiddles = code.add(tile_twiddles, code.mul(tile, 7 * self.bytes))
                    self._scatter_tile(code, self._block(code, at, code.mul(t, 8)), twiddles)

    def _scatter_layers(
        self, code: Code, base: Any, size: Any, stop: Any, twiddles: Any, first_group: Any
    ) -> None:
        """Layers from groups of ``size`` blocks down to groups of ``stop``; two layers to a pass where it
        goes."""
        f = self.field(code)
        width, group0 = code.variable(size), code.variable(first_group)
        load = lambda g: self._splat(code, f, code.add(twiddles, code.mul(g, self.twiddle_bytes)))  # noqa: E731
        with code.loop(lambda: code.less(code.mul(stop, 2), width.get())):
            quarter = code.lshr(width.get(), 2)
            with code.range(0, code.ir.sdiv(size, width.get())) as s:
                group = code.add(group0.get(), s)
                outer, inner = load(group), code.mul(group, 2)
                left, right = load(inner), load(code.add(inner, 1))
                start = self._block(code, base, code.mul(s, width.get()))
                with code.range(0, quarter) as j:
                    at, (a, b, c, d) = self._four(code, f, self._block(code, start, j), quarter)
                    (a, c), (b, d) = self._butterfly(f, a, c, outer), self._butterfly(f, b, d, outer)
                    (a, b), (c, d) = self._butterfly(f, a, b, left), self._butterfly(f, c, d, right)
                    for address, value in zip(at, (a, b, c, d), strict=True):
                        self._store(f, value, address)
            width.set(quarter)
            group0.set(code.mul(group0.get(), 4))
        with code.loop(lambda: code.less(stop, width.get())):
            half = code.lshr(width.get(), 1)
            with code.range(0, code.ir.sdiv(size, width.get())) as s:
                twiddle = load(code.add(group0.get(), s))
                start = self._block(code, base, code.mul(s, width.get()))
                self._half_pass(code, f, start, half, lambda j: twiddle)
            width.set(half)
            group0.set(code.mul(group0.get(), 2))

    def _half_pass(
        self, code: Code, f: PrimeField, start: Any, half: Any, twiddle: Callable[[Any], Element]
    ) -> None:
        with code.range(0, half) as j:
            at = [self._block(code, start, j), self._block(code, start, code.add(j, half))]
            u, v = self._butterfly(f, self._load(f, at[0]), self._load(f, at[1]), twiddle(j))
            self._store(f, u, at[0])
            self._store(f, v, at[1])

    def _transposed(self, f: PrimeField, tile: list[Element]) -> list[Element]:
        columns = [f.level.transpose([a.limbs[k] for a in tile]) for k in range(f.level.n_limbs)]
        bound = max(a.bound for a in tile)
        return [Element(limbs, bound, is_tidy=False) for limbs in zip(*columns, strict=True)]

    def _scatter_tile(self, code: Code, tile: Any, twiddles: Any) -> None:
        f = self.field(code)
        values = [self._load(f, self._block(code, tile, code.const(k))) for k in range(8)]
        values = self._transposed(f, values)
        at = 0
        for half in (4, 2, 1):
            for group in range(4 // half):
                twiddle = f.load(twiddles, at * self.bytes, bound=1)
                at += 1
                for k in range(2 * half * group, 2 * half * group + half):
                    values[k], values[k + half] = self._butterfly(f, values[k], values[k + half], twiddle)
        for k, value in enumerate(values):
            self._store(f, value, self._block(code, tile, code.const(k)))

    # --- gather ---------------------------------------------------------------------------------
    def gather(self, code: Code, blocks: Any, size: Any, twiddles: Any, tile_twiddles: Any) -> None:
        """twiddles: for groups of 2, 4, ... blocks, one block for each position of the lower half;
        tile_twiddles: 4 blocks that hold the powers 0..3 of the eighth root in every lane."""
        layers = code.function(f"gather_layers_{self.level.name}", 4, self._gather_layers)
        chunk = code.min(size, self.chunk)
        with code.range(0, code.ir.sdiv(size, chunk)) as c:
            at = self._block(code, blocks, code.mul(c, chunk))
            if self.lanes > 1:
                with code.range(0, chunk, 8) as t:
                    self._gather_tile(code, self._block(code, at, t), tile_twiddles)
            code.call(layers, at, chunk, 2, twiddles)
        code.call(layers, blocks, size, code.mul(chunk, 2), twiddles)

    def _gather_layers(self, code: Code, base: Any, size: Any, start: Any, twiddles: Any) -> None:
        """Layers from groups of ``start`` blocks up to groups of ``size``."""
        f = self.field(code)
        width = code.variable(start)
        table = lambda w: self._block(code, twiddles, code.sub(code.lshr(w, 1), 1))  # noqa: E731
        with code.loop(lambda: code.less(width.get(), size)):
            half, double = code.lshr(width.get(), 1), code.shl(width.get(), 1)
            with code.range(0, code.ir.sdiv(size, double)) as s:
                first = self._block(code, base, code.mul(s, double))
                with code.range(0, half) as j:
                    at, (a, b, c, d) = self._four(code, f, self._block(code, first, j), half)
                    inner = f.load(self._block(code, table(width.get()), j), bound=1)
                    low = f.load(self._block(code, table(double), j), bound=1)
                    high = f.load(self._block(code, table(double), code.add(j, half)), bound=1)
                    (a, b), (c, d) = self._butterfly(f, a, b, inner), self._butterfly(f, c, d, inner)
                    (a, c), (b, d) = self._butterfly(f, a, c, low), self._butterfly(f, b, d, high)
                    for address, value in zip(at, (a, b, c, d), strict=True):
                        self._store(f, value, address)
            width.set(code.shl(width.get(), 2))
        with code.loop(lambda: code.less(width.get(), code.add(size, 1))):
            half = code.lshr(width.get(), 1)
            with code.range(0, code.ir.sdiv(size, width.get())) as s:
                first = self._block(code, base, code.mul(s, width.get()))
                self._half_pass(
                    code, f, first, half, lambda j: f.load(self._block(code, table(width.get()), j), bound=1)
                )
            width.set(code.shl(width.get(), 1))

    def _gather_tile(self, code: Code, tile: Any, roots: Any) -> None:
        f = self.field(code)
        values = [f.load(tile, k * self.bytes) for k in range(8)]
        for half in (1, 2, 4):
            for group in range(0, 8, 2 * half):
                for k in range(half):
                    u, v = values[group + k], values[group + k + half]
                    if k:
                        v = f.multiply_inline(v, f.load(roots, k * (4 // half) * self.bytes, bound=1))
                    values[group + k], values[group + k + half] = f.add(u, v), f.subtract(u, v)
        for k, value in enumerate(self._transposed(f, values)):
            self._store(f, value, self._block(code, tile, code.const(k)))

    # --- element by element ---------------------------------------------------------------------
    def multiply_blocks(self, code: Code, out: Any, a: Any, b: Any, size: Any) -> None:
        """out = a * b; ``a`` fresh from a transform, ``b`` canonical."""
        f = self.field(code)
        with code.range(0, size) as k:
            factor = f.load(self._block(code, b, k), bound=1)
            value = f.multiply_inline(self._load(f, self._block(code, a, k)), factor)
            f.store(value, self._block(code, out, k))

    def pack(self, code: Code, rows: Any, blocks: Any, size: Any) -> None:
        """Rows of 32 bytes -> blocks, as they stand."""
        f = self.field(code)
        with code.range(0, size) as k:
            (value,) = f.load_rows(self._row_addresses(code, rows, k), 1)
            f.store_raw(value, self._block(code, blocks, k))

    def _row_addresses(self, code: Code, rows: Any, k: Any) -> list[Any]:
        first = code.add(rows, code.mul(k, 32 * self.lanes))
        return [code.add(first, 32 * lane) for lane in range(self.lanes)]

    def quotient(self, code: Code, a: Any, b: Any, c: Any, rows: Any, size: Any) -> None:
        """rows = a * b - c, out of Montgomery form; all three fresh from a transform."""
        f = self.field(code)
        with code.range(0, size) as k:
            x, y, z = (f.below(self._load(f, self._block(code, blocks, k)), 8) for blocks in (a, b, c))
            plain = f.multiply_inline(f.subtract(f.multiply_inline(x, y), f.below(z, 2)), f.raw(1))
            f.store_rows([plain], self._row_addresses(code, rows, k))
