"""Words: the few operations that hash functions are made of, over whatever a back end computes with.

A value is a Python int, known while the kernel is emitted, or what the back end made. Operations on known
values are done at once, so padding and other constants cost nothing at run time. ``Words`` itself knows only
ints: it is the slow twin of every kernel.
"""

from collections.abc import Callable, Sequence
from typing import Any


class Words:
    """Words of ``bits`` bits. A back end overrides the methods that start with ``emit_``."""

    def __init__(self, bits: int):
        self.bits = bits
        self.mask = (1 << bits) - 1

    # --- what formulas use ----------------------------------------------------------------------
    def add(self, *terms: Any) -> Any:
        """The sum, modulo 2^bits."""
        known = sum(term for term in terms if isinstance(term, int)) & self.mask
        return self._combine(self.emit_add, terms, known)

    def xor(self, *terms: Any) -> Any:
        known = 0
        for term in terms:
            if isinstance(term, int):
                known ^= term
        return self._combine(self.emit_xor, terms, known)

    def or_(self, a: Any, b: Any) -> Any:
        if isinstance(a, int) and isinstance(b, int):
            return a | b
        if 0 in (a, b) and (isinstance(a, int) or isinstance(b, int)):
            return b if isinstance(a, int) else a
        return self.emit_or(self.value(a), self.value(b))

    def and_(self, a: Any, b: Any) -> Any:
        if isinstance(a, int) and isinstance(b, int):
            return a & b
        for x, y in ((a, b), (b, a)):
            if isinstance(x, int) and x in (0, self.mask):
                return y if x else 0
        return self.emit_and(self.value(a), self.value(b))

    def invert(self, a: Any) -> Any:
        return a ^ self.mask if isinstance(a, int) else self.emit_xor(a, self.value(self.mask))

    def left(self, a: Any, n: int) -> Any:
        if isinstance(a, int) or not n:
            return a << n & self.mask if isinstance(a, int) else a
        return self.emit_left(a, n)

    def right(self, a: Any, n: int) -> Any:
        if isinstance(a, int) or not n:
            return a >> n if isinstance(a, int) else a
        return self.emit_right(a, n)

    def rotate(self, a: Any, n: int) -> Any:
        """``a`` rotated right by ``n`` bits."""
        n %= self.bits
        if isinstance(a, int) or not n:
            return (a >> n | a << self.bits - n) & self.mask if isinstance(a, int) else a
        return self.emit_rotate(a, n)

    def swap_bytes(self, a: Any) -> Any:
        if isinstance(a, int):
            return int.from_bytes(a.to_bytes(self.bits // 8, "little"), "big")
        return self.emit_swap(a)

    def is_below(self, a: Sequence[Any], b: Sequence[Any]) -> Any:
        """A mask: is ``a`` before ``b``, word by word? Only for values that are not known."""
        return tuple(a) < tuple(b)

    def choose(self, mask: Any, a: Any, b: Any) -> Any:
        return a if mask else b

    def loop(
        self, table: Sequence[Sequence[int]], state: Sequence[Any], body: Callable[..., Sequence[Any]]
    ) -> list[Any]:
        """``for row in table: state = body(state, row)``."""
        for row in table:
            state = body(list(state), list(row))
        return list(state)

    def value(self, a: Any) -> Any:
        """``a`` as the back end's own value."""
        return self.emit_constant(a) if isinstance(a, int) else a

    def as_written(self, a: Any) -> Any:
        """``a``, computed from its terms in the order in which they stand, whatever a compiler prefers."""
        return a

    def sha256_compress(self, state: Sequence[Any], block: Sequence[Any]) -> list[Any] | None:
        """A back end's own way to compress a block of SHA-256, where the hardware has one."""
        return None

    # --- what a back end provides ---------------------------------------------------------------
    def emit_constant(self, value: int) -> Any:
        return value

    def emit_add(self, a: Any, b: Any) -> Any:
        raise AssertionError("integers are folded before they come here")

    emit_xor = emit_or = emit_and = emit_left = emit_right = emit_rotate = emit_add

    def emit_swap(self, a: Any) -> Any:
        raise AssertionError("integers are folded before they come here")

    def _combine(self, emit: Callable[[Any, Any], Any], terms: Sequence[Any], known: int) -> Any:
        rest = [term for term in terms if not isinstance(term, int)]
        if not rest:
            return known
        if known:
            rest.append(self.value(known))
        total = rest[0]
        for term in rest[1:]:
            total = emit(total, term)
        return total
