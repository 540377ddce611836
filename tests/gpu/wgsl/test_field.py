"""Field arithmetic in WGSL, both variants, against Python's integers."""

import numpy as np
import pytest

from evenload.errors import UnknownName
from evenload.gpu.field import FQ, FR
from evenload.gpu.wgsl.field import VARIANTS, WgslField
from evenload.gpu.wgsl.kernel import KernelSource, Storage
from evenload.gpu.wgsl.queue import Queue

FUNCTIONS = ("mul", "add", "sub", "square", "eq", "is_zero")


@pytest.fixture(params=VARIANTS)
def variant(request, context):
    if request.param == "u64" and not context.has_int64:
        pytest.skip(f"{context.name} has no 64-bit integers")
    return request.param


def kernel(field):
    name = field.prime.name
    body = ["var x: array<u32, 8>; var y: array<u32, 8>;"]
    body.append("for (var j = 0u; j < 8u; j = j + 1u) { x[j] = a[item * 8u + j]; y[j] = b[item * 8u + j]; }")
    body.append(f"let p = {name}_load_words(x); let q = {name}_load_words(y); var r: array<u32, 8>;")
    for k, function in enumerate(FUNCTIONS):
        value = f"{name}_{function}({'p' if function in ('square', 'is_zero') else 'p, q'})"
        if function in ("eq", "is_zero"):
            value = f"{name}_choose({name}_zero(), {field.literal(1)}, {value})"
        body.append(f"r = {name}_store_words({value});")
        body.append(f"for (var j = 0u; j < 8u; j = j + 1u) {{ out[item * 48u + {8 * k}u + j] = r[j]; }}")
    storages = (Storage("a"), Storage("b"), Storage("out", "read_write"))
    return KernelSource(
        f"field-{name}-{field.variant}", "\n".join(body), storages, field.declarations(), iterations=64,
        needs_int64=field.needs_int64,
    )  # fmt: skip


def rows(values):
    return np.frombuffer(b"".join(value.to_bytes(32, "little") for value in values), np.uint8)


@pytest.mark.parametrize("prime", [FQ, FR], ids=lambda prime: prime.name)
def test_every_function(context, variant, prime):
    field, p = WgslField(prime, variant), prime.modulus
    edges = [0, 1, 2, p - 1, p - 2, p // 2, p // 2 + 1, 2**32 - 1, 2**253, (1 << 247) - 1]
    rng = np.random.default_rng(7)
    drawn = [int.from_bytes(rng.bytes(40), "little") % p for _ in range(400)]
    pairs = [(x, y) for x in edges for y in edges] + list(zip(drawn[::2], drawn[1::2], strict=True))
    n = len(pairs)
    out = context.buffer(192 * n)
    queue = Queue(context)
    queue.dispatch(
        kernel(field), [context.upload(rows(side)) for side in zip(*pairs, strict=True)] + [out], n
    )
    queue.finish()
    results = context.download(out).reshape(n, 6, 32)
    scale = pow(2, -field.radix_bits, p)
    for (x, y), row in zip(pairs, results, strict=True):
        found = [int.from_bytes(value.tobytes(), "little") for value in row]
        assert found == [
            x * y * scale % p,
            (x + y) % p,
            (x - y) % p,
            x * x * scale % p,
            int(x == y),
            int(x == 0),
        ]


def test_unknown_variant():
    with pytest.raises(UnknownName):
        WgslField(FQ, "u128")
