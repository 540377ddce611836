"""Programs of kernels from LLVM IR: shipped, or compiled once and kept, and loaded from then on."""

import ctypes
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenload.errors import ConfigError
from evenload.native import machine, objects, store


@dataclass(frozen=True, slots=True)
class Recipe:
    """The sources of a program, and how it is made from them.

    signatures  each kernel's number of arguments
    build       returns the IR; called only to compile
    sources     the files that the IR depends on
    baselines   for which an object comes with the package (native.machine.BASELINES)
    needs       instruction set extensions that the IR asks for, beyond those of the baseline
    """

    name: str
    signatures: Mapping[str, int]
    build: Callable[[], str]
    sources: tuple[str, ...]
    baselines: tuple[str, ...] = ()
    needs: frozenset[str] = frozenset()

    def code_hash(self) -> str:
        """Hash of the sources; that of a shipped program is remembered until one of them is changed."""
        return remembered_hash(self.sources) if self.baselines else _hash_of(self.sources)

    def compile_for(self, target: Any) -> bytes:
        return machine.compile_ir(self.build(), target)


@dataclass(frozen=True, slots=True)
class Program:
    """Loaded kernels by name. Each takes 64-bit integers and releases the GIL while it runs."""

    name: str
    kernels: Mapping[str, Callable[..., int]]
    was_cached: bool
    _engine: Any  # keeps the machine code alive

    def __getattr__(self, name: str) -> Callable[..., int]:
        try:
            return self.kernels[name]
        except KeyError:
            raise AttributeError(f"program {self.name!r} has no kernel {name!r}") from None


def remembered_hash(paths: tuple[str, ...]) -> str:
    """The hash of the code in these files, which are only read if one was changed since the last time."""
    found = [(path, os.stat(path)) for path in paths]
    facts = repr([(path, one.st_size, one.st_mtime_ns, one.st_ctime_ns) for path, one in found])
    return store.remembered("sources", facts, lambda: _hash_of(paths))


def _hash_of(paths: tuple[str, ...]) -> str:
    from evenload.native.code_hash import hash_of_files

    return hash_of_files(paths)


def sources(*modules: str) -> tuple[str, ...]:
    """Return the files of modules that are named relative to ``evenload.gpu``, such as ``llvm.code``."""
    root = Path(__file__).parents[1]
    return tuple(str(root.joinpath(*module.split(".")).with_suffix(".py")) for module in modules)


def load(recipe: Recipe) -> Program:
    """The program of ``recipe``, from where its object is.

    Raises MissingExtra without llvmlite, and ConfigError if the cache is not private to this user.
    """
    if sys.byteorder != "little":
        raise ConfigError("the kernels need a little-endian processor, this one is big-endian")
    engine, origin = objects.obtained(
        recipe.name, recipe.code_hash, lambda: recipe.compile_for(machine.host_machine()), recipe.needs
    )
    kernels = {
        kernel: ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * n)(engine.get_function_address(kernel))
        for kernel, n in recipe.signatures.items()
    }
    return Program(recipe.name, kernels, origin.how != "compiled", engine)


def ir_text(name: str, signatures: Mapping[str, int], bodies: Any, rounds_to_zero: str = "") -> str:
    """The LLVM IR of kernels whose bodies are the attributes of ``bodies`` that ``signatures`` names."""
    from llvmlite import ir

    from evenload.gpu.llvm.ir_builder import add_kernels

    module = ir.Module(name)
    add_kernels(module, signatures, bodies, rounds_to_zero=rounds_to_zero)
    return str(module)


def made_for(
    kind: str,
    shape: Sequence[int],
    signatures: Mapping[str, int],
    bodies: Callable[[], Any],
    modules: Sequence[str],
) -> Program:
    """The program of kernels that are made for one shape; ``bodies()``, as of ``ir_text``, only to compile.

    modules  that the IR depends on, as for ``sources``.  Raises as ``load``.
    """
    name = "-".join(map(str, (kind, *shape)))
    return load(Recipe(name, signatures, lambda: ir_text(kind, signatures, bodies()), sources(*modules)))
