"""Kernels of transforms over Fr in WGSL: one butterfly, or one element, per item.

The scattering transform takes natural order to bit-reversed order, the gathering one goes back; both read
their roots in bit-reversed order, one root for a group of butterflies. A step whose groups are larger than a
binding works *across* two buffers.
"""

import functools

from evenload.gpu.field import FR
from evenload.gpu.wgsl.field import Variant, WgslField
from evenload.gpu.wgsl.kernel import KernelSource, Storage


@functools.cache
def butterfly_kernel(is_gather: bool, is_across: bool, variant: Variant) -> KernelSource:
    """A butterfly of group ``item >> log_half`` with the root ``roots[first_root + group]``.

    scatter: (a, b) -> (a + root b, a - root b);  gather: (a, b) -> (a + b, root (a - b))
    Within one buffer ``low``, b lies 2^log_half behind a. Across, the whole of ``low`` and ``high`` is one
    group.
    """
    field = WgslField(FR, variant)
    body = "let group = item >> params.log_half; let at = item + (group << params.log_half);\n"
    high, high_at = "low", "at + (1u << params.log_half)"
    if is_across:
        body = "let group = 0u; let at = item;\n"
        high, high_at = "high", "at"
    body += f"let a = {field.load('low', '8u * at')};\nlet b = {field.load(high, f'8u * ({high_at})')};\n"
    body += f"let root = {field.load('roots', '8u * (params.first_root + group)')};\n"
    if is_gather:
        body += "let x = Fr_add(a, b); let y = Fr_mul(Fr_sub(a, b), root);\n"
    else:
        body += "let c = Fr_mul(b, root); let x = Fr_add(a, c); let y = Fr_sub(a, c);\n"
    body += field.store("low", "8u * at", "x", "wx") + field.store(high, f"8u * ({high_at})", "y", "wy")
    storages = [Storage("low", "read_write")]
    if is_across:
        storages.append(Storage("high", "read_write"))
    storages.append(Storage("roots"))
    name = f"{'gather' if is_gather else 'scatter'}-{'across' if is_across else 'within'}-{variant}"
    return KernelSource(
        name,
        body,
        tuple(storages),
        field.declarations(),
        ("log_half", "first_root"),
        needs_int64=field.needs_int64,
    )


def product_kernel(variant: Variant) -> KernelSource:
    """out[item] = a[item] * b[item], a Montgomery product."""
    return _each("product", variant, "Fr_mul({a}, {b})", ("a", "b"), "out")


def scale_kernel(variant: Variant) -> KernelSource:
    """a[item] = a[item] * factors[item], a Montgomery product."""
    return _each("scale", variant, "Fr_mul({a}, {factors})", ("factors",), "a")


def quotient_kernel(variant: Variant) -> KernelSource:
    """a[item] = a * b - c, out of Montgomery form.

    Rows of R = 2^256 are read as they are. At a larger R' = 2^256 * s they stand for x / s: a and b for
    a / s and b / s, their product c for c / s^2, and one last factor s^2 sets it right.
    """
    field = WgslField(FR, variant)
    last = field.literal(pow(4, field.radix_bits - 256, FR.modulus))
    return _each("quotient", variant, f"Fr_mul(Fr_sub(Fr_mul({{a}}, {{b}}), {{c}}), {last})", ("b", "c"), "a")


@functools.cache
def _each(name: str, variant: Variant, value: str, reads: tuple[str, ...], writes: str) -> KernelSource:
    """A kernel: an expression of elements of buffers, which are bound in the order of their names."""
    field, buffers = WgslField(FR, variant), sorted({*reads, writes})
    value = value.format(**{buffer: field.load(buffer, "8u * item") for buffer in buffers})
    return KernelSource(
        f"{name}-{variant}",
        field.store(writes, "8u * item", value, "w"),
        tuple(Storage(buffer, "read_write" if buffer == writes else "read") for buffer in buffers),
        field.declarations(),
        needs_int64=field.needs_int64,
    )
