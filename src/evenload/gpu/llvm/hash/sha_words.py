"""SHA-256 through the processor's own instructions (SHA-NI), for those that have them and no AVX-512.

Four hashes are computed at a time, as ``VectorWords`` of four. Each is compressed by itself, two of them
interleaved so that one computes while the other waits. Source: Intel, "SHA Extensions" (2013).
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from evenload.gpu.hashing.sha256 import ROUND
from evenload.gpu.llvm.ir_builder import I32, Code
from evenload.gpu.llvm.vector_words import VectorWords

__all__ = ["ShaWords"]

LANES = 4
QUAD = ir.VectorType(I32, LANES)
INTERLEAVED = 2


class ShaWords(VectorWords):
    """Four words of 32 bits, with SHA-256 compressed by the processor's instructions."""

    def __init__(self, code: Code):
        super().__init__(code, 32, LANES)

    def sha256_compress(self, state: Sequence[Any], block: Sequence[Any]) -> list[Any]:
        """What ``sha256.compress`` does: 8 words after a block of 16 words, all as lanes."""
        a, b, c, d, e, f, g, h = map(self.value, state)
        # One vector per hash from here on. The instructions want the words in this order, lowest lane first.
        outer, inner = self._columns([f, e, b, a]), self._columns([h, g, d, c])
        words = [self.value(word) for word in block]
        quads = [self._columns(words[k : k + 4]) for k in range(0, 16, 4)]
        done: list[tuple[Any, Any]] = []
        for first in range(0, LANES, INTERLEAVED):
            some = range(first, first + INTERLEAVED)
            done += self._rounds([(outer[k], inner[k]) for k in some], [[q[k] for q in quads] for k in some])
        add = self.code.ir.add
        outer = self._columns([add(old, new) for old, (new, _) in zip(outer, done, strict=True)])
        inner = self._columns([add(old, new) for old, (_, new) in zip(inner, done, strict=True)])
        (f, e, b, a), (h, g, d, c) = outer, inner
        return [a, b, c, d, e, f, g, h]

    def _rounds(self, states: list[tuple[Any, Any]], messages: list[list[Any]]) -> list[tuple[Any, Any]]:
        """64 rounds of several hashes; ``messages`` holds the words of each, in fours."""
        builder = self.code.ir
        for i in range(16):
            constants = ir.Constant(QUAD, list(ROUND[4 * i : 4 * i + 4]))
            for k, message in enumerate(messages):
                if i >= 4:
                    message.append(self._next_quad(message))
                keyed = builder.add(message[i], constants)
                outer, inner = states[k]
                inner = self._call("sha256rnds2", inner, outer, keyed)
                outer = self._call("sha256rnds2", outer, inner, self._shuffle(keyed, keyed, (2, 3, 0, 0)))
                states[k] = outer, inner
        return states

    def _next_quad(self, message: Sequence[Any]) -> Any:
        """The next four words of the schedule."""
        partial = self._call("sha256msg1", message[-4], message[-3])
        partial = self.code.ir.add(partial, self._shuffle(message[-2], message[-1], (1, 2, 3, 4)))
        return self._call("sha256msg2", partial, message[-1])

    def _call(self, name: str, *arguments: Any) -> Any:
        kind = ir.FunctionType(QUAD, [QUAD] * len(arguments))
        return self.code.ir.call(self.code.intrinsic(f"llvm.x86.{name}", kind), arguments)
