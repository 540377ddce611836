"""What the processor can do, and machine code for it through LLVM."""

import functools
import os
import platform
import sys
from typing import Any

from evenload._optional import require
from evenload.errors import UnknownName

__all__ = [
    "BASELINES", "baselines_here", "binding", "compile_ir", "features_of", "host_features", "host_machine",
    "loaded", "machine_for", "processor",
]  # fmt: skip

_V3 = [
    "avx",
    "avx2",
    "bmi",
    "bmi2",
    "cx16",
    "f16c",
    "fma",
    "lzcnt",
    "movbe",
    "popcnt",
    "sahf",
    "sse3",
    "sse4.1",
    "sse4.2",
    "ssse3",
]
_V4 = [*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"]
# LLVM's name of each processor that objects are shipped for, and what it has; the best comes first.
BASELINES = {"x86-64-v4": frozenset(_V4), "x86-64-v3": frozenset(_V3)}
_TRIPLE = "x86_64-unknown-linux-gnu"


def binding() -> Any:
    """llvmlite's binding, ready to use. Raises MissingExtra."""
    module = require("llvmlite.binding", extra="kernels", why="running generated kernels")
    _initialize(module)
    return module


@functools.cache
def _initialize(module: Any) -> None:
    module.initialize_native_target()
    module.initialize_native_asmprinter()


@functools.cache
def _detected() -> frozenset[str]:
    return frozenset(name for name, present in binding().get_host_cpu_features().items() if present)


def host_features() -> frozenset[str]:
    """Instruction set extensions of this processor, in LLVM's names, e.g. ``avx512ifma``.

    ``EVENLOAD_PROCESSOR`` = a baseline, such as ``x86-64-v3`` or ``x86-64-v3+sha``: no others than it has.
    """
    wish = os.environ.get("EVENLOAD_PROCESSOR")
    return _detected() if not wish else _detected() & _named(wish)


def _named(wish: str) -> frozenset[str]:
    baseline, *more = wish.split("+")
    if baseline not in BASELINES or not BASELINES[baseline] <= _detected():
        here = [name for name, needed in BASELINES.items() if needed <= _detected()]
        raise UnknownName("EVENLOAD_PROCESSOR", baseline, here)
    return BASELINES[baseline] | frozenset(more)


def baselines_here() -> list[str]:
    """The baselines whose objects this machine can run, best first."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return []
    return [name for name, needed in BASELINES.items() if needed <= host_features()]


def processor() -> tuple[str, str]:
    """(name, features) of what code is made for here, in LLVM's terms."""
    if wish := os.environ.get("EVENLOAD_PROCESSOR"):
        baseline = wish.split("+")[0]
        return baseline, features_of(baseline, host_features() - BASELINES[baseline])
    llvm = binding()
    return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


def host_machine() -> Any:
    """What code for this very processor is made with; a new one, as an engine takes its machine over."""
    llvm = binding()
    return _machine(
        llvm.get_default_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    )


def machine_for(baseline: str, more: frozenset[str] = frozenset()) -> Any:
    """What code is made with for every processor that has ``baseline`` and ``more`` features."""
    return _machine(_TRIPLE, baseline, features_of(baseline, more))


def features_of(baseline: str, more: frozenset[str] = frozenset()) -> str:
    """In LLVM's terms; whole 512-bit registers are used where there are any, as on the processor itself."""
    wide = ["-prefer-256-bit"] if baseline == "x86-64-v4" else []
    return ",".join([*(f"+{name}" for name in sorted(BASELINES[baseline] | more)), *wide])


def _machine(triple: str, cpu: str, features: str) -> Any:
    target = binding().Target.from_triple(triple)
    return target.create_target_machine(cpu=cpu, features=features, opt=2, codemodel="jitdefault", jit=True)


def compile_ir(text: str, machine: Any) -> bytes:
    """Optimise the IR for ``machine`` and return the object file."""
    llvm = binding()
    module = llvm.parse_assembly(text)
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return machine.emit_object(module)


def loaded(code: bytes) -> Any:
    """An engine that holds the object's code; addresses are good for as long as it lives."""
    llvm = binding()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), host_machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine
