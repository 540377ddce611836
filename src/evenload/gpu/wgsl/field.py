"""Arithmetic modulo a prime of BN254 in WGSL, in Montgomery form, as declarations for any kernel.

WGSL multiplies 32 by 32 bits and keeps the low half only. Two ways around that:

    u64      8 limbs of 32 bits, products through ``u64`` where the adapter has 64-bit integers; R = 2^256
    limb13   20 limbs of 13 bits: sums of products fit 32 bits, carries wait; R = 2^260

In buffers both are rows of 8 u32, little-endian, as on the CPU. Elements are below p at all times.
Source: Montgomery multiplication by operand scanning (Koc, Acar, Kaliski 1996); short limbs without inner
carries are an idea of Mitscha-Baude's, from the ZPrize 2022 entries.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from evenload.errors import UnknownName
from evenload.gpu.field import Prime

Variant = Literal["u64", "limb13"]
VARIANTS: tuple[Variant, ...] = ("u64", "limb13")
WORDS = 8


@dataclass(frozen=True, slots=True)
class WgslField:
    """The field of ``prime`` in WGSL: the type ``Fq`` (its name) and functions ``Fq_mul(a, b)`` and so on.

    add sub mul square    of two elements (one)
    load_words store_words  element <-> array<u32, 8>
    eq is_zero            comparisons
    choose(a, b, take_b)  one of two elements: WGSL's ``select`` takes no arrays
    zero                  the element 0
    Raises UnknownName on another variant.
    """

    prime: Prime
    variant: Variant

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise UnknownName("variant", self.variant, VARIANTS)

    @property
    def needs_int64(self) -> bool:
        return self.variant == "u64"

    @property
    def limb_bits(self) -> int:
        return 32 if self.variant == "u64" else 13

    @property
    def n_limbs(self) -> int:
        return 8 if self.variant == "u64" else 20

    @property
    def radix_bits(self) -> int:
        """Montgomery's R is 2 to this."""
        return self.n_limbs * self.limb_bits

    def montgomery(self, value: int) -> int:
        """``value`` in this variant's Montgomery form."""
        return self.prime.montgomery(value, self.radix_bits)

    def load(self, buffer: str, at: str) -> str:
        """WGSL for the element whose words begin at ``at`` in a buffer of u32."""
        words = ", ".join(f"{buffer}[{at} + {j}u]" for j in range(WORDS))
        return f"{self.prime.name}_load_words(array<u32, {WORDS}>({words}))"

    def store(self, buffer: str, at: str, value: str, name: str) -> str:
        """WGSL statements that write an element there; ``name`` is of nothing else."""
        lines = [f"let {name} = {self.prime.name}_store_words({value});"]
        return "\n".join([*lines, *(f"{buffer}[{at} + {j}u] = {name}[{j}];" for j in range(WORDS))]) + "\n"

    def literal(self, value: int) -> str:
        """WGSL for an element that holds ``value`` as it stands."""
        return f"{self.prime.name}({_listed(self._limbs(value % self.prime.modulus))})"

    def declarations(self) -> str:
        """The type and all functions."""
        name = self.prime.name
        lines = [
            f"alias {name} = array<u32, {self.n_limbs}>;",
            f"fn {name}_zero() -> {name} {{ return {self.literal(0)}; }}",
        ]
        lines += self._mul_u64() if self.variant == "u64" else self._mul_limb13()
        lines += self._sums()
        lines += self._moves()
        lines.append(f"fn {name}_square(a: {name}) -> {name} {{ return {name}_mul(a, a); }}")
        lines += self._comparisons()
        return "\n".join(lines) + "\n"

    # --- pieces ---------------------------------------------------------------------------------
    def _limbs(self, value: int) -> list[int]:
        return [value >> self.limb_bits * k & (1 << self.limb_bits) - 1 for k in range(self.n_limbs)]

    def _p(self) -> list[int]:
        return self._limbs(self.prime.modulus)

    def _inverse(self) -> int:
        return -pow(self.prime.modulus, -1, 1 << self.limb_bits) % (1 << self.limb_bits)

    def _head(self, function: str, arguments: Sequence[str], result: str | None = None) -> str:
        name = self.prime.name
        listed = ", ".join(f"{argument}: {name}" for argument in arguments)
        return f"fn {name}_{function}({listed}) -> {result or name} {{"

    def _choose(self, reduced: Iterable[str], whole: Iterable[str], keep: str) -> str:
        pairs = [f"select({r}, {w}, {keep})" for r, w in zip(reduced, whole, strict=True)]
        return f"return {self.prime.name}({', '.join(pairs)}); }}"

    @property
    def _word(self) -> tuple[str, str, int]:
        """(suffix of its literals, mask of a limb, its sign's place) of the words that sums are made in."""
        suffix, sign = ("lu", 63) if self.variant == "u64" else ("u", 31)
        return suffix, f"{(1 << self.limb_bits) - 1}{suffix}", sign

    def _widened(self, limb: str) -> str:
        return f"u64({limb})" if self.variant == "u64" else limb

    def _narrowed(self, word: str) -> str:
        return f"u32({word})" if self.variant == "u64" else word

    def _reduced(self) -> list[str]:
        """t0, t1, ... (words, carried, together below 2p) as an element."""
        suffix, mask, sign = self._word
        lines = [f"var borrow = 0{suffix};"]
        for j, limb in enumerate(self._p()):
            lines.append(f"let d{j} = t{j} - {limb}{suffix} - borrow; borrow = d{j} >> {sign}u;")
        reduced = (self._narrowed(f"d{j} & {mask}") for j in range(self.n_limbs))
        whole = (self._narrowed(f"t{j}") for j in range(self.n_limbs))
        return [*lines, self._choose(reduced, whole, f"borrow == 1{suffix}")]

    def _sums(self) -> list[str]:
        (suffix, mask, sign), bits, limbs = self._word, self.limb_bits, range(self.n_limbs)
        pairs = [(self._widened(f"a[{j}]"), self._widened(f"b[{j}]")) for j in limbs]
        add = [self._head("add", "ab"), f"var carry = 0{suffix};"]
        for j, (a, b) in enumerate(pairs):
            add.append(f"let s{j} = {a} + {b} + carry; carry = s{j} >> {bits}u; let t{j} = s{j} & {mask};")
        subtract = [self._head("sub", "ab"), f"var down = 0{suffix};"]
        for j, (a, b) in enumerate(pairs):
            subtract.append(f"let s{j} = {a} - {b} - down; down = s{j} >> {sign}u;")
        subtract.append(f"var carry = 0{suffix}; let is_negative = down == 1{suffix};")
        for j, limb in enumerate(self._p()):
            lift = f"select(0{suffix}, {limb}{suffix}, is_negative)"
            subtract.append(f"let t{j} = (s{j} & {mask}) + {lift} + carry; carry = t{j} >> {bits}u;")
        whole = ", ".join(self._narrowed(f"t{j} & {mask}") for j in limbs)
        return [*add, *self._reduced(), *subtract, f"return {self.prime.name}({whole}); }}"]

    def _comparisons(self) -> list[str]:
        name = self.prime.name
        is_equal = " && ".join(f"a[{j}] == b[{j}]" for j in range(self.n_limbs))
        any_bit = " | ".join(f"a[{j}]" for j in range(self.n_limbs))
        return [
            f"fn {name}_eq(a: {name}, b: {name}) -> bool {{ return {is_equal}; }}",
            f"fn {name}_is_zero(a: {name}) -> bool {{ return ({any_bit}) == 0u; }}",
            f"fn {name}_choose(a: {name}, b: {name}, take_b: bool) -> {name} "
            "{ if (take_b) { return b; } return a; }",
        ]

    def _moves(self) -> list[str]:
        name, bits, kind = self.prime.name, self.limb_bits, f"array<u32, {WORDS}>"
        limbs = []
        for j in range(self.n_limbs):
            word, shift = divmod(bits * j, 32)
            text = f"(w[{word}] >> {shift}u)"
            if shift > 32 - bits and word + 1 < WORDS:
                text = f"({text} | (w[{word + 1}] << {32 - shift}u))"
            limbs.append(f"{text} & {(1 << bits) - 1}u")
        words = []
        for k in range(WORDS):
            parts = []
            for j in range(self.n_limbs):
                shift = bits * j - 32 * k
                if -bits < shift < 32:
                    parts.append(f"(a[{j}] << {shift}u)" if shift >= 0 else f"(a[{j}] >> {-shift}u)")
            words.append(" | ".join(parts))
        return [
            f"fn {name}_load_words(w: {kind}) -> {name} {{ return {name}({', '.join(limbs)}); }}",
            f"fn {name}_store_words(a: {name}) -> {kind} {{ return {kind}({', '.join(words)}); }}",
        ]

    # --- 8 limbs of 32 bits through u64 ---------------------------------------------------------
    def _mul_u64(self) -> list[str]:
        p, last, mask = self._p(), self.n_limbs - 1, "0xfffffffflu"
        lines = [self._head("mul", "ab")]
        lines += [f"let b{j} = u64(b[{j}]); var t{j} = 0lu;" for j in range(8)]
        lines.append("var x = 0lu; var v = 0lu; var w = 0lu; var c = 0lu; var e = 0lu; var q = 0lu;")
        for i in range(8):
            lines.append(f"x = u64(a[{i}]); v = x * b0 + t0; c = v >> 32u;")
            lines.append(f"q = ((v & {mask}) * {self._inverse()}lu) & {mask};")
            lines.append(f"w = q * {p[0]}lu + (v & {mask}); e = w >> 32u;")
            for j in range(1, 8):
                lines.append(f"v = x * b{j} + t{j} + c; c = v >> 32u;")
                lines.append(f"w = q * {p[j]}lu + (v & {mask}) + e; e = w >> 32u; t{j - 1} = w & {mask};")
            # The two top bits of p are free, so this sum has no carry.
            lines.append(f"t{last} = c + e;")
        return [*lines, *self._reduced()]

    # --- 20 limbs of 13 bits --------------------------------------------------------------------
    def _mul_limb13(self) -> list[str]:
        p, n, bits = self._p(), self.n_limbs, self.limb_bits
        mask = f"{(1 << bits) - 1}u"
        # After so many rounds of two products each, a limb might overflow: carry before that.
        rounds = (1 << 32) // (2 * ((1 << bits) - 1) ** 2) - 1
        lines = [self._head("mul", "ab")]
        lines += [f"let b{j} = b[{j}]; var t{j} = 0u;" for j in range(n)]
        lines.append("var q = 0u; var x = 0u; var c = 0u;")
        for i in range(n):
            lines.append(f"x = a[{i}]; c = t0 + x * b0; q = ((c & {mask}) * {self._inverse()}u) & {mask};")
            lines.append(f"c = (c + q * {p[0]}u) >> {bits}u;")
            lines.append(f"t0 = t1 + x * b1 + q * {p[1]}u + c;")
            lines += [f"t{j - 1} = t{j} + x * b{j} + q * {p[j]}u;" for j in range(2, n)]
            lines.append(f"t{n - 1} = 0u;")
            if (i + 1) % rounds == 0 and i + 1 < n:
                lines += [
                    f"t{j + 1} = t{j + 1} + (t{j} >> {bits}u); t{j} = t{j} & {mask};" for j in range(n - 1)
                ]
        lines.append("c = 0u;")
        lines += [f"c = c + t{j}; t{j} = c & {mask}; c = c >> {bits}u;" for j in range(n - 1)]
        lines.append(f"t{n - 1} = t{n - 1} + c;")
        return [*lines, *self._reduced()]


def _listed(values: Iterable[int]) -> str:
    return ", ".join(f"{value}u" for value in values)
