"""Words side by side in a vector register: one hash per lane. Runs on any processor that LLVM knows."""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from evenload.gpu.hashing.sha256 import ROUND
from evenload.gpu.hashing.words import Words
from evenload.gpu.llvm.ir_builder import I32, I64, Code

LANES = 4
QUAD = ir.VectorType(I32, LANES)
INTERLEAVED = 2


class VectorWords(Words):
    """Words in a vector: ``lanes`` of ``bits`` bits. Memory holds one row per lane, words little-endian."""

    def __init__(self, code: Code, bits: int, lanes: int):
        super().__init__(bits)
        self.code, self.lanes = code, lanes
        self.word = ir.IntType(bits)
        self.kind = ir.VectorType(self.word, lanes)

    # --- words ----------------------------------------------------------------------------------
    def emit_constant(self, value: int) -> Any:
        return ir.Constant(self.kind, [value] * self.lanes)

    def emit_add(self, a: Any, b: Any) -> Any:
        return self.code.ir.add(a, b)

    def emit_xor(self, a: Any, b: Any) -> Any:
        return self.code.ir.xor(a, b)

    def emit_or(self, a: Any, b: Any) -> Any:
        return self.code.ir.or_(a, b)

    def emit_and(self, a: Any, b: Any) -> Any:
        return self.code.ir.and_(a, b)

    def emit_left(self, a: Any, n: int) -> Any:
        return self.code.ir.shl(a, self.emit_constant(n))

    def emit_right(self, a: Any, n: int) -> Any:
        return self.code.ir.lshr(a, self.emit_constant(n))

    def emit_rotate(self, a: Any, n: int) -> Any:
        return self.code.ir.call(self._intrinsic("fshr", 3), [a, a, self.emit_constant(n)])

    def emit_swap(self, a: Any) -> Any:
        return self.code.ir.call(self._intrinsic("bswap", 1), [a])

    def as_written(self, a: Any) -> Any:
        """``a``, hidden from LLVM, which adds constants last: a tenth of SHA-256's time on AVX-512.

        Narrower vectors have more to compute than to wait for, and take what LLVM makes of it.
        """
        if isinstance(a, int) or self.bits * self.lanes < 512:
            return a
        nothing = ir.InlineAsm(ir.FunctionType(self.kind, [self.kind]), "", "=v,0")
        return self.code.ir.call(nothing, [a])

    def is_below(self, a: Sequence[Any], b: Sequence[Any]) -> Any:
        builder = self.code.ir
        mask = builder.icmp_unsigned("<", a[-1], b[-1])
        for x, y in zip(reversed(a[:-1]), reversed(b[:-1]), strict=True):
            is_equal = builder.icmp_unsigned("==", x, y)
            mask = builder.or_(builder.icmp_unsigned("<", x, y), builder.and_(is_equal, mask))
        return mask

    def choose(self, mask: Any, a: Any, b: Any) -> Any:
        return self.code.ir.select(mask, self.value(a), self.value(b))

    def loop(
        self, table: Sequence[Sequence[int]], state: Sequence[Any], body: Callable[..., Sequence[Any]]
    ) -> list[Any]:
        code = self.code
        width = len(table[0])
        flat = [value for row in table for value in row]
        address = code.table(f"table_{flat[0]:x}_{len(flat)}", flat, self.word)
        kept = [code.variable(self.value(word), self.kind) for word in state]
        with code.range(0, len(table)) as i:
            row_at = code.add(address, code.mul(i, width * self.bits // 8))
            row = [self.splat(code.load(row_at, self.word, k * self.bits // 8)) for k in range(width)]
            for variable, word in zip(kept, body([v.get() for v in kept], row), strict=True):
                variable.set(word)
        return [variable.get() for variable in kept]

    def _intrinsic(self, name: str, n_arguments: int) -> Any:
        kind = ir.FunctionType(self.kind, [self.kind] * n_arguments)
        return self.code.intrinsic(f"llvm.{name}.v{self.lanes}i{self.bits}", kind)

    def splat(self, word: Any) -> Any:
        """A scalar word in every lane."""
        return self.code.spread(word, self.kind)

    def splat_i64(self, value: Any) -> Any:
        """The low ``bits`` bits of a 64-bit integer in every lane."""
        return self.splat(
            value if self.word is I64 or self.bits == 64 else self.code.ir.trunc(value, self.word)
        )

    # --- memory ---------------------------------------------------------------------------------
    def load_rows(self, address: Any, stride: Any, n_words: int) -> list[Any]:
        """The first ``n_words`` words of ``lanes`` rows that are ``stride`` bytes apart, word by word."""
        code, found = self.code, []
        rows = [code.add(address, code.mul(stride, lane)) for lane in range(self.lanes)]
        for at in range(0, n_words, self.lanes):
            width = min(self.lanes, n_words - at)
            if self.lanes % width:
                found += [self._gather(rows, at + k) for k in range(width)]
                continue
            narrow = ir.VectorType(self.word, width)
            pieces = [code.load(row, narrow, at * self.bits // 8) for row in rows]
            found += self._transpose(pieces, width)
        return found

    def store_rows(self, words: Sequence[Any], address: Any, stride: int) -> None:
        """The opposite; ``len(words)`` words per row, a power of two."""
        code, size = self.code, self.bits // 8
        for at in range(0, len(words), self.lanes):
            group = [self.value(word) for word in words[at : at + self.lanes]]
            width = len(group)
            blank = ir.Constant(self.kind, ir.Undefined)
            rows = self._columns([*group, *[blank] * (self.lanes - width)])
            for lane, row in enumerate(rows):
                if width < self.lanes:
                    row = self.code.shuffle(row, row, range(width))
                code.store(row, code.add(address, lane * stride), at * size)

    def _gather(self, rows: Sequence[Any], word: int) -> Any:
        column = ir.Constant(self.kind, ir.Undefined)
        for lane, row in enumerate(rows):
            value = self.code.load(row, self.word, word * self.bits // 8)
            column = self.code.ir.insert_element(column, value, ir.Constant(ir.IntType(32), lane))
        return column

    def _transpose(self, pieces: Sequence[Any], width: int) -> list[Any]:
        """``lanes`` rows of ``width`` words -> ``width`` columns of ``lanes`` words."""
        rows = []
        for k in range(width):
            # Part j of vector k holds row width * j + k, so that the parts are transposed side by side.
            parts = list(pieces[k::width])
            while len(parts) > 1:
                n_words = 2 * width * self.lanes // width // len(parts)
                parts = [
                    self.code.shuffle(a, b, range(n_words))
                    for a, b in zip(parts[::2], parts[1::2], strict=True)
                ]
            rows.append(parts[0])
        return self._columns(rows)

    def _columns(self, rows: Sequence[Any]) -> list[Any]:
        """Transpose squares of ``len(rows)`` words, side by side: a round for each bit of the index."""
        step, current = 1, list(rows)
        while step < len(rows):
            current = self._exchange(current, step)
            step *= 2
        return current

    def _exchange(self, current: Sequence[Any], step: int) -> list[Any]:
        """Swap words whose lane and whose vector differ in the bit ``step``."""
        after: list[Any] = [None] * len(current)
        lanes = range(self.lanes)
        for i, vector in enumerate(current):
            if i & step:
                continue
            other = current[i | step]
            after[i] = self.code.shuffle(
                vector, other, [j if not j & step else self.lanes + (j ^ step) for j in lanes]
            )
            after[i | step] = self.code.shuffle(
                vector, other, [j ^ step if not j & step else self.lanes + j for j in lanes]
            )
        return after


class ShaWords(VectorWords):
    """Four words of 32 bits, with SHA-256 compressed by the processor's own instructions (SHA-NI).

    Each of four hashes is compressed by itself, two of them interleaved so that one computes while the other
    waits. Source: Intel, "SHA Extensions" (2013).
    """

    def __init__(self, code: Code):
        super().__init__(code, 32, LANES)

    def sha256_compress(self, state: Sequence[Any], block: Sequence[Any]) -> list[Any]:
        """What ``sha256.compress`` does: 8 words after a block of 16 words, all as lanes."""
        a, b, c, d, e, f, g, h = map(self.value, state)
        # One vector per hash from here on. The instructions want the words in this order, lowest lane first.
        outer, inner = self._columns([f, e, b, a]), self._columns([h, g, d, c])
        words = [self.value(word) for word in block]
        quads = [self._columns(words[k : k + 4]) for k in range(0, 16, 4)]
        done: list[tuple[Any, Any]] = []
        for first in range(0, LANES, INTERLEAVED):
            some = range(first, first + INTERLEAVED)
            done += self._rounds([(outer[k], inner[k]) for k in some], [[q[k] for q in quads] for k in some])
        add = self.code.ir.add
        outer = self._columns([add(old, new) for old, (new, _) in zip(outer, done, strict=True)])
        inner = self._columns([add(old, new) for old, (_, new) in zip(inner, done, strict=True)])
        (f, e, b, a), (h, g, d, c) = outer, inner
        return [a, b, c, d, e, f, g, h]

    def _rounds(self, states: list[tuple[Any, Any]], messages: list[list[Any]]) -> list[tuple[Any, Any]]:
        """64 rounds of several hashes; ``messages`` holds the words of each, in fours."""
        builder = self.code.ir
        for i in range(16):
            constants = ir.Constant(QUAD, list(ROUND[4 * i : 4 * i + 4]))
            for k, message in enumerate(messages):
                if i >= 4:
                    message.append(self._next_quad(message))
                keyed = builder.add(message[i], constants)
                outer, inner = states[k]
                inner = self._call("sha256rnds2", inner, outer, keyed)
                outer = self._call("sha256rnds2", outer, inner, self.code.shuffle(keyed, keyed, (2, 3, 0, 0)))
                states[k] = outer, inner
        return states

    def _next_quad(self, message: Sequence[Any]) -> Any:
        """The next four words of the schedule."""
        partial = self._call("sha256msg1", message[-4], message[-3])
        partial = self.code.ir.add(partial, self.code.shuffle(message[-2], message[-1], (1, 2, 3, 4)))
        return self._call("sha256msg2", partial, message[-1])

    def _call(self, name: str, *arguments: Any) -> Any:
        kind = ir.FunctionType(QUAD, [QUAD] * len(arguments))
        return self.code.ir.call(self.code.intrinsic(f"llvm.x86.{name}", kind), arguments)
