"""Registers of a loop in LLVM code: what a sum of points (``evenload.gpu.curve``) is kept in."""

from collections.abc import Sequence
from typing import Any

from evenload.gpu.llvm.ir_builder import Variable

__all__ = ["Registers"]


class Registers:
    """Elements that change inside a loop or a branch; the optimiser keeps them in registers where it can."""

    def __init__(self, f: Any, elements: Sequence[Any], bound: float = 2):
        self.f, self.bound = f, bound
        flat = [limb for element in elements for limb in f.flatten(f.below(element, bound))]
        self._slots = [Variable(f.code, limb.type, limb) for limb in flat]

    def get(self) -> list[Any]:
        limbs = [slot.get() for slot in self._slots]
        size = self.f.degree * self.f.level.n_limbs
        return [self.f.gather(limbs[k : k + size], self.bound) for k in range(0, len(limbs), size)]

    def set(self, elements: Sequence[Any]) -> None:
        flat = [limb for element in elements for limb in self.f.flatten(self.f.below(element, self.bound))]
        for slot, limb in zip(self._slots, flat, strict=True):
            slot.set(limb)
