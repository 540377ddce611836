"""What the processor can do, and machine code for it through LLVM."""

import functools
import os
import platform
import sys
from dataclasses import dataclass
from typing import Any

from evenload._optional import is_installed, require
from evenload.errors import UnknownName
from evenload.native.elf_image import image_of


@dataclass(frozen=True, slots=True)
class Baseline:
    """A kind of processor that objects are shipped for, in LLVM's terms: what each of that kind has."""

    triple: str
    cpu: str
    features: frozenset[str]


_V3 = [
    "avx", "avx2", "bmi", "bmi2", "cx16", "f16c", "fma", "lzcnt", "movbe", "popcnt", "sahf", "sse3", "sse4.1",
    "sse4.2", "ssse3",
]  # fmt: skip
_V4 = [*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"]
_X86, _ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"
# By name; of one architecture, the best comes first. Every arm64 processor has NEON.
BASELINES = {
    "x86-64-v4": Baseline(_X86, "x86-64-v4", frozenset(_V4)),
    "x86-64-v3": Baseline(_X86, "x86-64-v3", frozenset(_V3)),
    "armv8-a": Baseline(_ARM, "generic", frozenset()),
}


def binding() -> Any:
    """llvmlite's binding, ready to use. Raises MissingExtra."""
    module = require("llvmlite.binding", extra="kernels", why="running generated kernels")
    _initialize(module)
    return module


@functools.cache
def _initialize(module: Any) -> None:
    module.initialize_native_target()
    module.initialize_native_asmprinter()


def initialize_all_targets() -> None:
    """Let this process make code for baselines of other architectures, too."""
    binding().initialize_all_targets()
    binding().initialize_all_asmprinters()


# Linux's names of extensions that LLVM calls otherwise.
_LLVM_NAMES = {
    "abm": "lzcnt", "bmi1": "bmi", "lahf_lm": "sahf", "pni": "sse3", "sha_ni": "sha", "sse4_1": "sse4.1",
    "sse4_2": "sse4.2",
}  # fmt: skip


@functools.cache
def _detected() -> frozenset[str]:
    """From Linux where it lists them, which is sooner than LLVM is loaded; else from LLVM."""
    return _listed_by_linux() or frozenset(
        name for name, present in binding().get_host_cpu_features().items() if present
    )


def _listed_by_linux() -> frozenset[str]:
    """Features of an x86-64 processor, in LLVM's names; empty where there is no such list."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return frozenset()
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            line = next((line for line in file if line.startswith("flags")), "")
    except OSError:
        return frozenset()
    return frozenset(_LLVM_NAMES.get(name, name) for name in line.partition(":")[2].split())


def host_features() -> frozenset[str]:
    """Instruction set extensions of this processor, in LLVM's names, e.g. ``avx512ifma``.

    ``EVENLOAD_PROCESSOR`` = a baseline, such as ``x86-64-v3`` or ``x86-64-v3+sha``: no others than it has.
    """
    wish = os.environ.get("EVENLOAD_PROCESSOR")
    return _detected() if not wish else _detected() & _named(wish)


def _named(wish: str) -> frozenset[str]:
    baseline, *more = wish.split("+")
    here = _baselines_among(_detected())
    if baseline not in here:
        raise UnknownName("EVENLOAD_PROCESSOR", baseline, here)
    return BASELINES[baseline].features | frozenset(more)


def baselines_here() -> list[str]:
    """The baselines whose objects this machine can run, best first."""
    return _baselines_among(host_features())


def _baselines_among(features: frozenset[str]) -> list[str]:
    if sys.platform != "linux":
        return []
    machine = platform.machine()
    return [
        name
        for name, kind in BASELINES.items()
        if kind.triple.startswith(f"{machine}-") and kind.features <= features
    ]


def processor() -> tuple[str, str]:
    """(name, features) of what code is made for here, in LLVM's terms."""
    if wish := os.environ.get("EVENLOAD_PROCESSOR"):
        baseline = wish.split("+")[0]
        kind = BASELINES[baseline]
        return kind.cpu, features_of(baseline, host_features() - kind.features)
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
    kind = BASELINES[baseline]
    return _machine(kind.triple, kind.cpu, features_of(baseline, more))


def features_of(baseline: str, more: frozenset[str] = frozenset()) -> str:
    """In LLVM's terms; whole 512-bit registers are used where there are any, as on the processor itself."""
    wide = ["-prefer-256-bit"] if baseline == "x86-64-v4" else []
    return ",".join([*(f"+{name}" for name in sorted(BASELINES[baseline].features | more)), *wide])


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
    """What holds the object's code; addresses are good for as long as it lives. Raises MissingExtra.

    Objects of the plain kind are put into memory without LLVM; it must be installed all the same, as it makes
    what is not shipped.
    """
    image = image_of(code) if is_installed("llvmlite") else None
    if image is not None:
        return image
    llvm = binding()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), host_machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine
