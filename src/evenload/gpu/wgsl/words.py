"""Words as WGSL text: an operation becomes a ``let``, a value is its name. 64 bits are a pair of u32."""

from collections.abc import Callable, Sequence
from typing import Any

from evenload.gpu.hashing.words import Words


class WgslWords(Words):
    """Words of 32 bits. ``lines`` are the statements so far, ``tables`` what they need at module level."""

    def __init__(self) -> None:
        super().__init__(32)
        self.lines: list[str] = []
        self.tables: list[str] = []
        self._n_names = 0

    def let(self, expression: str) -> str:
        """A name for the value of ``expression``."""
        name = self.fresh()
        self.lines.append(f"let {name} = {expression};")
        return name

    def fresh(self) -> str:
        self._n_names += 1
        return f"v{self._n_names}"

    def emit_constant(self, value: int) -> str:
        return f"{value}u"

    def emit_add(self, a: str, b: str) -> str:
        return self.let(f"{a} + {b}")

    def emit_xor(self, a: str, b: str) -> str:
        return self.let(f"{a} ^ {b}")

    def emit_or(self, a: str, b: str) -> str:
        return self.let(f"{a} | {b}")

    def emit_and(self, a: str, b: str) -> str:
        return self.let(f"{a} & {b}")

    def emit_left(self, a: str, n: int) -> str:
        return self.let(f"{a} << {n}u")

    def emit_right(self, a: str, n: int) -> str:
        return self.let(f"{a} >> {n}u")

    def emit_rotate(self, a: str, n: int) -> str:
        return self.let(f"({a} >> {n}u) | ({a} << {32 - n}u)")

    def emit_swap(self, a: str) -> str:
        return self.let(f"({a} >> 24u) | (({a} >> 8u) & 0xff00u) | (({a} << 8u) & 0xff0000u) | ({a} << 24u)")

    def is_below(self, a: Sequence[Any], b: Sequence[Any]) -> str:
        mask = "false"
        for x, y in zip(reversed(a), reversed(b), strict=True):
            mask = self.let(f"select({x} < {y}, {mask}, {x} == {y})")
        return mask

    def choose(self, mask: str, a: Any, b: Any) -> str:
        return self.let(f"select({self.value(b)}, {self.value(a)}, {mask})")

    def loop(
        self, table: Sequence[Sequence[int]], state: Sequence[Any], body: Callable[..., Sequence[Any]]
    ) -> list[str]:
        width, index, name = len(table[0]), self.fresh(), self.table([v for row in table for v in row])
        kept = [self.fresh() for _ in state]
        for variable, word in zip(kept, state, strict=True):
            self.lines.append(f"var {variable} = {self.value(word)};")
        self.lines.append(f"for (var {index} = 0u; {index} < {len(table)}u; {index} = {index} + 1u) {{")
        row = [self.let(f"{name}[{index} * {width}u + {k}u]") for k in range(width)]
        now = [self.let(variable) for variable in kept]
        for variable, word in zip(kept, body(now, row), strict=True):
            self.lines.append(f"{variable} = {self.value(word)};")
        self.lines.append("}")
        return kept

    def table(self, values: Sequence[int]) -> str:
        """The name of a constant array that may be indexed by what is not known."""
        text = f"array<u32, {len(values)}>({', '.join(f'{value}u' for value in values)});"
        for line in self.tables:
            if line.endswith(f"= {text}"):
                return line.split()[1].rstrip(":")
        name = f"table{len(self.tables)}"
        self.tables.append(f"var<private> {name}: array<u32, {len(values)}> = {text}")
        return name


class Pairs(Words):
    """Words of 64 bits as (low, high) over words of 32: what Keccak needs, which never adds."""

    def __init__(self, half: Words):
        super().__init__(64)
        self.half = half

    def emit_constant(self, value: int) -> Any:
        return value & 0xFFFFFFFF, value >> 32

    def emit_xor(self, a: Any, b: Any) -> Any:
        return tuple(self.half.xor(x, y) for x, y in zip(a, b, strict=True))

    def emit_and(self, a: Any, b: Any) -> Any:
        return tuple(self.half.and_(x, y) for x, y in zip(a, b, strict=True))

    def emit_rotate(self, a: Any, n: int) -> Any:
        half, (low, high) = self.half, a
        if n >= 32:
            low, high, n = high, low, n - 32
        if not n:
            return low, high
        return tuple(half.or_(half.right(x, n), half.left(y, 32 - n)) for x, y in ((low, high), (high, low)))

    def emit_swap(self, a: Any) -> Any:
        return self.half.swap_bytes(a[1]), self.half.swap_bytes(a[0])

    def is_below(self, a: Sequence[Any], b: Sequence[Any]) -> Any:
        return self.half.is_below(*([word for low, high in side for word in (high, low)] for side in (a, b)))

    def choose(self, mask: Any, a: Any, b: Any) -> Any:
        return tuple(self.half.choose(mask, x, y) for x, y in zip(self.value(a), self.value(b), strict=True))

    def loop(
        self, table: Sequence[Sequence[int]], state: Sequence[Any], body: Callable[..., Sequence[Any]]
    ) -> list[Any]:
        def halves(words: Sequence[Any]) -> list[Any]:
            return [part for word in words for part in self.value(word)]

        def pairs(parts: Sequence[Any]) -> list[Any]:
            return list(zip(parts[::2], parts[1::2], strict=True))

        flat = [halves(row) for row in table]
        return pairs(
            self.half.loop(flat, halves(state), lambda words, row: halves(body(pairs(words), pairs(row))))
        )
