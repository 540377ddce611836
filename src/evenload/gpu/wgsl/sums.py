"""Kernels of Pippenger's method in WGSL: points into buckets in bounded steps, buckets into segments.

    collect   one item adds up a *run*: at most ``MAX_RUN`` points of a bucket, or sums of earlier runs
    segment   one item adds up a segment of consecutive buckets, plain and weighted by 1, 2, ...
    convert   rows of R = 2^256 to this variant's form, once for each key
A bucket that holds half of all points is many runs, then few, then one: no loop is longer than a run, since
some drivers end long loops without a word, and no item keeps the others waiting.
"""

import functools

from evenload.gpu.field import FQ
from evenload.gpu.wgsl.field import Variant, WgslField
from evenload.gpu.wgsl.group import WgslGroup
from evenload.gpu.wgsl.kernel import KernelSource, Storage

__all__ = ["MAX_RUN", "MAX_SEGMENT", "collect_kernel", "convert_kernel", "segment_kernel"]

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
    words = ", ".join(f"rows[8u * item + {j}u]" for j in range(8))
    factor = field.literal(pow(2, 2 * field.radix_bits - 256, FQ.modulus))
    body = f"let w = Fq_store_words(Fq_mul(Fq_load_words(array<u32, 8>({words})), {factor}));\n"
    body += "\n".join(f"rows[8u * item + {j}u] = w[{j}];" for j in range(8))
    storages = (Storage("rows", "read_write"),)
    return KernelSource(
        f"convert-{variant}", body, storages, field.declarations(), needs_int64=field.needs_int64
    )
