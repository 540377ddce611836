"""WGSL kernels of hashes; ``merkle/test_engine`` holds each of them against hashlib."""

import numpy as np
import pytest

from evenload.errors import UnknownName
from evenload.gpu.field import FR
from evenload.gpu.hashing.rules import RULES
from evenload.gpu.poseidon import poseidon
from evenload.gpu.wgsl.hashes import hash_kernel, poseidon_constants, poseidon_kernel
from evenload.gpu.wgsl.queue import Queue


@pytest.mark.slow  # a software driver takes five seconds to compile it
def test_poseidon_without_64_bit_integers(context):
    r = FR.modulus
    values = [0, 0, r - 1, r - 1, 1, r - 2, *(pow(5, k, r) for k in range(14))]
    rows = np.frombuffer(b"".join(value.to_bytes(32, "little") for value in values), np.uint8)
    buffer, queue = context.upload(rows, context.buffer(rows.nbytes + 320)), Queue(context)
    bound = [buffer, context.upload(poseidon_constants("limb13"))]
    queue.dispatch(poseidon_kernel("limb13"), bound, 10, read_at=0, write_at=rows.nbytes // 4)
    queue.finish()
    for k, digest in enumerate(context.download(buffer, 320, rows.nbytes).reshape(10, 32)):
        assert int.from_bytes(digest.tobytes(), "little") == poseidon(values[2 * k : 2 * k + 2])


def test_no_kernel_loops_further_than_the_worst_driver():
    kernels = [
        hash_kernel(name, kind)
        for name in RULES
        for kind in ("leaf", "pair")
        if (name, kind) != ("bitcoin", "leaf")
    ]
    kernels += [hash_kernel(name, "message") for name in ("rfc6962", "blake2s", "openzeppelin")]
    kernels += [poseidon_kernel("u64"), poseidon_kernel("limb13")]
    assert max(kernel.iterations for kernel in kernels) < 60_000
    for names in (("md5", "leaf"), ("rfc6962", "tree")):
        with pytest.raises(UnknownName):
            hash_kernel(*names)
