"""Poseidon of two elements of Fr in WGSL: one hash per invocation, as ``pair`` of ``hashes``."""

import functools

import numpy as np

from evenload.gpu.field import FR
from evenload.gpu.poseidon import FULL_ROUNDS, parameters
from evenload.gpu.wgsl.field import Variant, WgslField
from evenload.gpu.wgsl.kernel import KernelSource, Storage

__all__ = ["poseidon_constants", "poseidon_kernel"]

WIDTH = 3
STORAGES = (Storage("buffer", "read_write"), Storage("known"))


@functools.cache
def poseidon_kernel(variant: Variant) -> KernelSource:
    """A kernel: buffer[write_at + 8 i ..] = hash of the two elements at buffer[read_at + 16 i ..]; ``known``
    holds the constants. Elements are below r and not in Montgomery form."""
    rounds, field = len(parameters(WIDTH).constants), WgslField(FR, variant)
    # Loading a constant takes 8 iterations.
    iterations = 2 * (1 + 8 + 8) + rounds * (1 + WIDTH * 9 + 9 * 9) + 8
    load = (
        "fn constant(k: u32) -> Fr { var row: array<u32, 8>;"
        " for (var j = 0u; j < 8u; j = j + 1u) { row[j] = known[k * 8u + j]; } return Fr_load_words(row); }"
    )
    return KernelSource(
        f"poseidon-{variant}",
        _body(field),
        STORAGES,
        field.declarations() + load,
        ("read_at", "write_at"),
        iterations=iterations,
        needs_int64=field.needs_int64,
    )


def _body(field: WgslField) -> str:
    chosen = parameters(WIDTH)
    rounds, half = len(chosen.constants), FULL_ROUNDS // 2
    matrix_at = rounds * WIDTH
    return f"""
var state: array<Fr, 3>;
for (var k = 0u; k < 2u; k = k + 1u) {{
    var row: array<u32, 8>;
    for (var j = 0u; j < 8u; j = j + 1u) {{ row[j] = buffer[params.read_at + (2u * item + k) * 8u + j]; }}
    state[k + 1u] = Fr_mul(Fr_load_words(row), constant({matrix_at + 9}u));
}}
for (var r = 0u; r < {rounds}u; r = r + 1u) {{
    for (var k = 0u; k < 3u; k = k + 1u) {{
        var x = Fr_add(state[k], constant(3u * r + k));
        if (k == 0u || r < {half}u || r >= {half + chosen.partial_rounds}u) {{
            let square = Fr_square(x);
            x = Fr_mul(Fr_square(square), x);
        }}
        state[k] = x;
    }}
    var mixed: array<Fr, 3>;
    for (var k = 0u; k < 9u; k = k + 1u) {{
        let term = Fr_mul(constant({matrix_at}u + k), state[k % 3u]);
        if (k % 3u == 0u) {{ mixed[k / 3u] = term; }} else {{ mixed[k / 3u] = Fr_add(mixed[k / 3u], term); }}
    }}
    state = mixed;
}}
let digest = Fr_store_words(Fr_mul(state[0], {field.literal(1)}));
for (var j = 0u; j < 8u; j = j + 1u) {{ buffer[params.write_at + item * 8u + j] = digest[j]; }}
"""


@functools.cache
def poseidon_constants(variant: Variant) -> np.ndarray:
    """uint8: round constants, the matrix and R^2, all rows of 32 bytes."""
    field, chosen = WgslField(FR, variant), parameters(WIDTH)
    values = [field.montgomery(value) for row in (*chosen.constants, *chosen.matrix) for value in row]
    values.append(field.montgomery(field.montgomery(1)))
    return np.frombuffer(b"".join(value.to_bytes(32, "little") for value in values), np.uint8)
