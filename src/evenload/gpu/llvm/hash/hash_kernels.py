"""Kernels for the levels of Merkle trees: many independent hashes, one per lane.

    leaves(source, target, n, params)            rows of 32 bytes -> digests
    pairs(source, target, n, params)             rows of 64 bytes -> digests; target may be source
    fold(rows, n, levels, params)                n digests -> n / 2^levels, in place
    messages(source, row_bytes, n_blocks, length, target, n, params)
                                                 padded leaves of one length; n is a multiple of the lanes
Rows need no alignment. ``params`` is the address of the rule's words.
"""

import functools
from typing import Any

from evenload.errors import UnknownName
from evenload.gpu.hashing.rules import RULES, Rule
from evenload.gpu.llvm import program
from evenload.gpu.llvm.program import Program, Recipe
from evenload.native import machine

SIGNATURES = {"leaves": 4, "pairs": 4, "fold": 4, "messages": 7}
SHA = "sha"
SHA_RULES = ("rfc6962", "bitcoin")
DIGEST_BYTES = 32
N_PARAMS = 18


def vector_bits() -> int:
    """Width of this processor's widest integer vectors: 512, 256 or 128."""
    features = machine.host_features()
    return 512 if {"avx512f", "avx512bw"} <= features else 256 if "avx2" in features else 128


def best_level(rule_name: str) -> int | str:
    """Bits of the widest vector, or SHA where the processor hashes SHA-256 faster by itself."""
    width = vector_bits()
    return SHA if width < 512 and rule_name in SHA_RULES and "sha" in machine.host_features() else width


@functools.cache
def hash_program(rule_name: str, level: int | str | None = None) -> Program:
    """The kernels of a rule on vectors of so many bits, or with the processor's SHA instructions.

    level  512, 256, 128 or SHA; default: the best of this processor
    Raises UnknownName, MissingExtra.
    """
    if rule_name not in RULES:
        raise UnknownName("hash rule", rule_name, RULES)
    return program.load(hash_recipe(rule_name, level or best_level(rule_name)))


def hash_recipe(rule_name: str, level: int | str) -> Recipe:
    sources = program.sources(
        "hashing.blake2s", "hashing.keccak", "hashing.rules", "hashing.sha256", "hashing.words",
        "llvm.hash.hash_kernels", "llvm.ir_builder", "llvm.vector_words",
    )  # fmt: skip
    build = functools.partial(hash_ir, rule_name, level)
    baselines = {"512": ("x86-64-v4",), "128": ("armv8-a",)}.get(str(level), ("x86-64-v3",))
    needs = frozenset({"sha"} if level == SHA else ())
    return Recipe(f"hash-{rule_name}-{level}", kernels_of(rule_name), build, sources, baselines, needs)


def kernels_of(rule_name: str) -> dict[str, int]:
    """Signatures; a rule that takes its leaves as they are has no kernels for them."""
    hashes_leaves = type(RULES[rule_name]).leaf is not Rule.leaf
    return SIGNATURES if hashes_leaves else {name: SIGNATURES[name] for name in ("pairs", "fold")}


def hash_ir(rule_name: str, level: int | str) -> str:
    """The LLVM IR of a rule's kernels."""
    return program.ir_text(f"hash-{rule_name}", kernels_of(rule_name), _RuleKernels(RULES[rule_name], level))


class _RuleKernels:
    """Bodies of the kernels of one rule; each method is one of SIGNATURES."""

    def __init__(self, rule: Rule, level: int | str):
        self.rule, self.level = rule, level
        self.lanes = 4 if isinstance(level, str) else level // rule.bits

    def leaves(self, code: Any, source: Any, target: Any, n: Any, params: Any) -> None:
        self._rows(code, "leaf", 32, source, target, n, params)

    def pairs(self, code: Any, source: Any, target: Any, n: Any, params: Any) -> None:
        self._rows(code, "pair", 64, source, target, n, params)

    def fold(self, code: Any, rows: Any, n: Any, levels: Any, params: Any) -> None:
        left = code.variable(n)
        with code.range(0, levels):
            left.set(code.lshr(left.get(), 1))
            # A group is read before it is written, and never written beyond where the next one is read.
            self.pairs(code, rows, rows, left.get(), params)

    def messages(
        self,
        code: Any,
        source: Any,
        row_bytes: Any,
        n_blocks: Any,
        length: Any,
        target: Any,
        n: Any,
        params: Any,
    ) -> None:
        w, rule = self._words(code), self.rule
        known = self._load_params(code, w, params)
        with code.range(0, n, self.lanes) as i:
            first = code.add(source, code.mul(i, row_bytes))
            state = [code.variable(w.value(word), w.kind) for word in rule.start(w, known)]
            with code.range(0, n_blocks) as k:
                at = code.add(first, code.mul(k, rule.block_bytes))
                block = w.load_rows(at, row_bytes, rule.block_bytes * 8 // rule.bits)
                seen = w.splat_i64(code.min(code.mul(code.add(k, 1), rule.block_bytes), length))
                is_last = code.ir.icmp_signed("==", k, code.sub(n_blocks, 1))
                last = w.splat(code.ir.sext(is_last, w.word))
                after = rule.absorb(w, [v.get() for v in state], block, seen, last, known)
                for variable, word in zip(state, after, strict=True):
                    variable.set(w.value(word))
            digest = rule.finish(w, [v.get() for v in state])
            w.store_rows(digest, code.add(target, code.mul(i, DIGEST_BYTES)), DIGEST_BYTES)

    def _rows(
        self, code: Any, kind: str, row_bytes: int, source: Any, target: Any, n: Any, params: Any
    ) -> None:
        """Digests of ``n`` rows, ``lanes`` at a time; the last ones by way of a full set on the stack."""
        body = code.function(f"hash_{kind}", 3, functools.partial(self._group, kind, row_bytes))
        spare_in = code.stack(row_bytes * self.lanes)
        spare_out = code.stack(DIGEST_BYTES * self.lanes)
        with code.range(0, n, self.lanes) as i:
            left = code.sub(n, i)
            is_full = code.ir.icmp_signed(">=", left, code.const(self.lanes))
            at_in = code.add(source, code.mul(i, row_bytes))
            at_out = code.add(target, code.mul(i, DIGEST_BYTES))
            with code.when(code.ir.not_(is_full)):
                self._copy_rows(code, spare_in, at_in, left, row_bytes)
            chosen_in = code.ir.select(is_full, at_in, spare_in)
            chosen_out = code.ir.select(is_full, at_out, spare_out)
            code.call(body, chosen_in, chosen_out, params)
            with code.when(code.ir.not_(is_full)):
                self._copy_rows(code, at_out, spare_out, left, DIGEST_BYTES)

    def _copy_rows(self, code: Any, target: Any, source: Any, n: Any, row_bytes: int) -> None:
        from llvmlite import ir

        piece = ir.VectorType(ir.IntType(8), 32)
        with code.range(0, code.mul(n, row_bytes), 32) as at:
            code.store(code.load(code.add(source, at), piece), code.add(target, at))

    def _group(self, kind: str, row_bytes: int, code: Any, source: Any, target: Any, params: Any) -> None:
        w = self._words(code)
        row = w.load_rows(source, row_bytes, row_bytes * 8 // self.rule.bits)
        digest = getattr(self.rule, kind)(w, row, self._load_params(code, w, params))
        w.store_rows(digest, target, DIGEST_BYTES)

    def _words(self, code: Any) -> Any:
        from evenload.gpu.llvm.vector_words import ShaWords, VectorWords

        return ShaWords(code) if self.level == SHA else VectorWords(code, self.rule.bits, self.lanes)

    def _load_params(self, code: Any, w: Any, params: Any) -> list[Any]:
        size = self.rule.bits // 8
        return [w.splat(code.load(params, w.word, k * size)) for k in range(N_PARAMS)]
