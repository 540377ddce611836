"""Kernels of Pippenger's method in WGSL: points into buckets in bounded steps, buckets into segments.

    collect   one item adds up a *run*: at most ``MAX_RUN`` points of a bucket, or sums of earlier runs
    segment   one item adds up a segment of consecutive buckets, plain and weighted by 1, 2, ...
    convert   rows of R = 2^256 to this variant's form, once for each key
A bucket that holds half of all points is many runs, then few, then one: no loop is longer than a run, since
some drivers end long loops without a word, and no item keeps the others waiting.
"""

import functools
from dataclasses import dataclass
from typing import Any

from evenload.errors import ConfigError
from evenload.gpu.curve import Point, add
from evenload.gpu.field import FQ, TWIST_B
from evenload.gpu.wgsl.field import Variant, WgslField
from evenload.gpu.wgsl.kernel import KernelSource, Storage

MAX_RUN = 64
MAX_SEGMENT = 64


@functools.cache
def collect_kernel(degree: int, variant: Variant) -> KernelSource:
    """sums[slot] = the sum of a run, for runs[3 i ..] = (first, count, slot).

    ``from_sums`` 0: of points[index[first ..]], affine rows, the sign bit of an index asks for the negative;
    1: of sums[first ..], which must lie elsewhere than any slot that is written. ``sums`` holds projective
    points, zeros for infinity. ``products`` is 3, see ``WgslGroup``.
    """
    group = WgslGroup(degree, variant)
    words = group.coordinate_words
    body = f"""
let first = runs[3u * item]; let count = runs[3u * item + 1u]; let slot = runs[3u * item + 2u];
var total = P_infinity();
for (var k = 0u; k < min(count, {MAX_RUN}u); k = k + 1u) {{
    var next = P_infinity();
    if (params.from_sums == 1u) {{
        let at = (first + k) * {3 * words}u;
        next = P(sums_F(at), sums_F(at + {words}u), sums_F(at + {2 * words}u));
    }} else {{
        let entry = index[first + k];
        let at = (entry & 0x7fffffffu) * {2 * words}u;
        next = P(points_F(at), points_F(at + {words}u), F_one());
        if ((entry >> 31u) == 1u) {{ next.y = F_sub(F_zero(), next.y); }}
    }}
    total = P_add(total, next);
}}
let to = slot * {3 * words}u;
sums_put(to, total.x); sums_put(to + {words}u, total.y); sums_put(to + {2 * words}u, total.z);
"""
    storages = (Storage("points"), Storage("index"), Storage("runs"), Storage("sums", "read_write"))
    text = group.declarations() + group.load("points") + group.load("sums") + group.store("sums")
    return KernelSource(
        f"collect-g{degree}-{variant}",
        body,
        storages,
        text,
        ("from_sums", "products"),
        iterations=MAX_RUN * group.loops_per_addition,
        needs_int64=group.needs_int64,
    )


@functools.cache
def segment_kernel(degree: int, variant: Variant) -> KernelSource:
    """out[item] = six coordinates, R = 2^256: the sum of buckets ``length * item`` .. + length - 1, and their
    sum weighted by 1, 2, ... ``length``; what the CPU's ``fold`` reads. ``products`` is 3, see ``WgslGroup``.
    """
    group = WgslGroup(degree, variant)
    words = group.coordinate_words
    # Running sum and weighted sum take turns, so that the addition stands in the text once.
    body = f"""
var running = P_infinity(); var weighted = P_infinity();
let length = min(params.length, {MAX_SEGMENT}u);
for (var k = 0u; k < 2u * length; k = k + 1u) {{
    let is_running = (k & 1u) == 0u;
    var left = weighted; var right = running;
    if (is_running) {{
        let at = (item * length + length - 1u - (k >> 1u)) * {3 * words}u;
        left = running;
        right = P(sums_F(at), sums_F(at + {words}u), sums_F(at + {2 * words}u));
        if (F_is_zero(right.y)) {{ right = P_infinity(); }}
    }}
    let total = P_add(left, right);
    if (is_running) {{ running = total; }} else {{ weighted = total; }}
}}
let to = item * {6 * words}u;
"""
    for k, value in enumerate(f"{point}.{c}" for point in ("running", "weighted") for c in "xyz"):
        body += f"out_put(to + {k * words}u, F_common({value}));\n"
    storages = (Storage("sums"), Storage("out", "read_write"))
    text = group.declarations() + group.load("sums") + group.store("out")
    return KernelSource(
        f"segment-g{degree}-{variant}",
        body,
        storages,
        text,
        ("length", "products"),
        iterations=2 * MAX_SEGMENT * group.loops_per_addition,
        needs_int64=group.needs_int64,
    )


@functools.cache
def convert_kernel(variant: Variant) -> KernelSource:
    """rows[item] of Fq, Montgomery with R = 2^256, to this variant's R, in place."""
    field = WgslField(FQ, variant)
    factor = field.literal(pow(2, 2 * field.radix_bits - 256, FQ.modulus))
    body = field.store("rows", "8u * item", f"Fq_mul({field.load('rows', '8u * item')}, {factor})", "w")
    storages = (Storage("rows", "read_write"),)
    return KernelSource(
        f"convert-{variant}", body, storages, field.declarations(), needs_int64=field.needs_int64
    )


ROW_WORDS = 8


@dataclass(frozen=True, slots=True)
class WgslGroup:
    """The group G1 (degree 1) or G2 (degree 2) in WGSL.

    Types: ``F`` (a coordinate) and ``P`` (x : y : z), infinity (0 : 1 : 0).

    F_mul F_add F_sub F_zero F_is_zero     arithmetic of coordinates
    F_common                               a coordinate in Montgomery form with R = 2^256, whatever R is here
    P_add                                  of any two points, equal, opposite and infinite ones included
    P_infinity
    Kernels have a parameter ``products`` that is 3: a product in Fq2 is that many in Fq, in a loop whose
    length the driver must not know. It would write them all out, and take ten times as long to compile.
    """

    degree: int
    variant: Variant

    def __post_init__(self) -> None:
        if self.degree not in (1, 2):
            raise ConfigError(f"there is no group G{self.degree}", hint="1 or 2")

    @property
    def field(self) -> WgslField:
        return WgslField(FQ, self.variant)

    @property
    def needs_int64(self) -> bool:
        return self.field.needs_int64

    @property
    def coordinate_words(self) -> int:
        """u32 of one coordinate in a buffer."""
        return ROW_WORDS * self.degree

    @property
    def loops_per_addition(self) -> int:
        """Iterations of a loop that calls ``P_add`` once: its own, and those of 14 products in Fq2."""
        return 1 if self.degree == 1 else 1 + 14 * 3

    def declarations(self) -> str:
        """All types and functions."""
        lines = [
            self.field.declarations(),
            self._common(),
            *(self._plain() if self.degree == 1 else self._pairs()),
        ]
        lines += [
            "struct P { x: F, y: F, z: F };",
            "fn P_infinity() -> P { return P(F_zero(), F_one(), F_zero()); }",
            self._addition(),
        ]
        return "\n".join(lines) + "\n"

    def load(self, buffer: str) -> str:
        """``buffer_F(at)``: the coordinate whose words begin at ``at``."""
        rows = [self.field.load(buffer, f"at + {ROW_WORDS * c}u") for c in range(self.degree)]
        value = rows[0] if self.degree == 1 else f"F({', '.join(rows)})"
        return f"fn {buffer}_F(at: u32) -> F {{ return {value}; }}\n"

    def store(self, buffer: str) -> str:
        """``buffer_put(at, a)``: write a coordinate."""
        parts = ["a"] if self.degree == 1 else ["a.c0", "a.c1"]
        body = [
            self.field.store(buffer, f"at + {ROW_WORDS * c}u", part, f"w{c}") for c, part in enumerate(parts)
        ]
        return f"fn {buffer}_put(at: u32, a: F) {{\n{''.join(body)}}}\n"

    # --- pieces ---------------------------------------------------------------------------------
    def _common(self) -> str:
        """Elements of this variant's form to R = 2^256: one product where R differs."""
        if self.field.radix_bits == 256:
            return "fn Fq_common(a: Fq) -> Fq { return a; }"
        one = self.field.literal(pow(2, 256, FQ.modulus))
        return f"fn Fq_common(a: Fq) -> Fq {{ return Fq_mul(a, {one}); }}"

    def _plain(self) -> list[str]:
        lines = ["alias F = Fq;", f"fn F_one() -> F {{ return {self._literal(1)}; }}"]
        arguments = {"zero": "", "is_zero": "a", "common": "a", "mul": "ab", "add": "ab", "sub": "ab"}
        for name, listed in arguments.items():
            result = "bool" if name == "is_zero" else "F"
            given = ", ".join(f"{a}: F" for a in listed)
            lines.append(f"fn F_{name}({given}) -> {result} {{ return Fq_{name}({', '.join(listed)}); }}")
        lines.append(
            "fn F_3b(a: F) -> F { let b = F_add(a, a); let c = F_add(b, b); return F_add(F_add(c, c), a); }"
        )
        return lines

    def _pairs(self) -> list[str]:
        b0, b1 = (self._literal(3 * c) for c in TWIST_B)
        return [
            "struct F { c0: Fq, c1: Fq };",
            "fn F_zero() -> F { return F(Fq_zero(), Fq_zero()); }",
            f"fn F_one() -> F {{ return F({self._literal(1)}, Fq_zero()); }}",
            "fn F_add(a: F, b: F) -> F { return F(Fq_add(a.c0, b.c0), Fq_add(a.c1, b.c1)); }",
            "fn F_sub(a: F, b: F) -> F { return F(Fq_sub(a.c0, b.c0), Fq_sub(a.c1, b.c1)); }",
            "fn F_common(a: F) -> F { return F(Fq_common(a.c0), Fq_common(a.c1)); }",
            "fn F_is_zero(a: F) -> bool { return Fq_is_zero(a.c0) && Fq_is_zero(a.c1); }",
            "fn F_mul(a: F, b: F) -> F {",
            # A loop, so that the product stands in the text once: drivers inline all calls.
            "var low = Fq_zero(); var high = low; var cross = low;",
            "let sum_a = Fq_add(a.c0, a.c1); let sum_b = Fq_add(b.c0, b.c1);",
            "for (var k = 0u; k < params.products; k = k + 1u) {",
            "let x = Fq_choose(Fq_choose(a.c0, a.c1, k == 1u), sum_a, k == 2u);",
            "let y = Fq_choose(Fq_choose(b.c0, b.c1, k == 1u), sum_b, k == 2u);",
            "let t = Fq_mul(x, y);",
            "low = Fq_choose(low, t, k == 0u); high = Fq_choose(high, t, k == 1u);",
            "cross = Fq_choose(cross, t, k == 2u); }",
            "return F(Fq_sub(low, high), Fq_sub(Fq_sub(cross, low), high)); }",
            f"fn F_3b(a: F) -> F {{ return F_mul(a, F({b0}, {b1})); }}",
        ]

    def _literal(self, value: int) -> str:
        return self.field.literal(self.field.montgomery(value % FQ.modulus))

    def _addition(self) -> str:
        text = _Text()
        total = add(text, Point("a.x", "a.y", "a.z"), Point("b.x", "b.y", "b.z"))
        body = "\n".join(text.lines)
        return f"fn P_add(a: P, b: P) -> P {{\n{body}\nreturn P({total.x}, {total.y}, {total.z}); }}"


class _Text:
    """Emits arithmetic of coordinates as WGSL; a value is the name of a ``let``. Every value is reduced."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def _call(self, function: str, *arguments: str) -> str:
        name = f"v{len(self.lines)}"
        self.lines.append(f"let {name} = F_{function}({', '.join(arguments)});")
        return name

    def multiply(self, a: str, b: str) -> str:
        return self._call("mul", a, b)

    def add(self, a: str, b: str) -> str:
        return self._call("add", a, b)

    def subtract(self, a: str, b: str) -> str:
        return self._call("sub", a, b)

    def triple(self, a: str) -> str:
        return self.add(self.add(a, a), a)

    def times_3b(self, a: str) -> str:
        return self._call("3b", a)

    def below(self, a: str, bound: float) -> str:
        return a

    def dot(self, *terms: tuple[str, str, int]) -> Any:
        """The first term's sign is never negative in the formulas."""
        total = self.multiply(*terms[0][:2])
        for a, b, sign in terms[1:]:
            total = (self.add if sign > 0 else self.subtract)(total, self.multiply(a, b))
        return total
