"""Kernels of the hash rules in WGSL: one hash per invocation, over one buffer of u32.

    leaf      buffer[write_at + 8 i ..] = digest of the 32 bytes at buffer[read_at + 8 i ..]
    pair      buffer[write_at + 8 i ..] = digest of the 64 bytes at buffer[read_at + 16 i ..]
    message   the same of a padded message of ``n_blocks`` blocks, ``length`` bytes of it counted
Offsets count words. ``known`` holds the rule's 18 parameters; for Poseidon of two elements of Fr, which has a
``pair`` alone, its constants.
"""

import functools
from typing import Any

import numpy as np

from evenload.errors import UnknownName
from evenload.gpu.field import FR
from evenload.gpu.hashing.rules import RULES, Rule
from evenload.gpu.poseidon import FULL_ROUNDS, parameters
from evenload.gpu.wgsl.field import Variant, WgslField
from evenload.gpu.wgsl.kernel import KernelSource, Storage
from evenload.gpu.wgsl.words import Pairs, WgslWords

KINDS = ("leaf", "pair", "message")
N_PARAMS = 18
STORAGES = (Storage("buffer", "read_write"), Storage("known"))
MAX_BLOCKS = 1024


@functools.cache
def hash_kernel(rule_name: str, kind: str) -> KernelSource:
    """The kernel ``kind`` of a rule. Raises UnknownName."""
    if rule_name not in RULES:
        raise UnknownName("hash rule", rule_name, RULES)
    if kind not in KINDS:
        raise UnknownName("kernel", kind, KINDS)
    rule, half = RULES[rule_name], WgslWords()
    words = half if rule.bits == 32 else Pairs(half)
    params = _load(half, words, "known", "0u", N_PARAMS)
    if kind == "message":
        _message(rule, half, words, params)
        names: tuple[str, ...] = ("read_at", "write_at", "n_blocks", "length")
    else:
        n_words = (8 if kind == "leaf" else 16) * 32 // rule.bits
        start = half.let(f"params.read_at + item * {8 if kind == 'leaf' else 16}u")
        row = _load(half, words, "buffer", start, n_words)
        _store(half, words, getattr(rule, kind)(words, row, params))
        names = ("read_at", "write_at")
    n_rounds = 24 * 3 if rule.bits == 64 else 0
    return KernelSource(
        f"{rule_name}-{kind}",
        "\n".join(half.lines),
        STORAGES,
        "\n".join(half.tables),
        names,
        iterations=n_rounds if kind != "message" else (n_rounds + 1) * MAX_BLOCKS // 3 + n_rounds,
    )


def _message(rule: Rule, half: WgslWords, words: Any, params: list[Any]) -> None:
    n_words = rule.block_bytes * 8 // rule.bits
    start = half.let(f"params.read_at + item * params.n_blocks * {rule.block_bytes // 4}u")
    kept = []
    for word in rule.start(words, params):
        parts = words.value(word) if rule.bits == 64 else (words.value(word),)
        names = tuple(half.fresh() for _ in parts)
        half.lines += [f"var {name} = {half.value(part)};" for name, part in zip(names, parts, strict=True)]
        kept.append(names)
    half.lines.append("for (var block = 0u; block < params.n_blocks; block = block + 1u) {")
    row = _load(half, words, "buffer", half.let(f"{start} + block * {rule.block_bytes // 4}u"), n_words)
    seen = half.let(f"min((block + 1u) * {rule.block_bytes}u, params.length)")
    last = half.let("select(0u, 0xffffffffu, block + 1u == params.n_blocks)")
    now = [tuple(half.let(name) for name in names) for names in kept]
    state = now if rule.bits == 64 else [word for (word,) in now]
    for names, word in zip(kept, rule.absorb(words, state, row, seen, last, params), strict=True):
        parts = words.value(word) if rule.bits == 64 else (words.value(word),)
        half.lines += [f"{name} = {half.value(part)};" for name, part in zip(names, parts, strict=True)]
    half.lines.append("}")
    _store(half, words, rule.finish(words, kept if rule.bits == 64 else [word for (word,) in kept]))


def _load(half: WgslWords, words: Any, array: str, start: str, n_words: int) -> list[Any]:
    if words is half:
        return [half.let(f"{array}[{start} + {k}u]") for k in range(n_words)]
    if array == "known":
        return [0] * n_words  # no rule on 64-bit words has parameters
    parts = [half.let(f"{array}[{start} + {k}u]") for k in range(2 * n_words)]
    return list(zip(parts[::2], parts[1::2], strict=True))


def _store(half: WgslWords, words: Any, digest: list[Any]) -> None:
    at = half.let("params.write_at + item * 8u")
    parts = digest if words is half else [part for word in digest for part in words.value(word)]
    half.lines += [f"buffer[{at} + {k}u] = {half.value(part)};" for k, part in enumerate(parts)]


WIDTH = 3


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
