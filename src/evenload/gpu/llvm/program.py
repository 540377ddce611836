"""Compile a program of kernels once, keep the object file, and load it from then on.

The cache holds machine code, so it is trusted only where nobody else can write: a directory with mode 0700
that belongs to this user, files with mode 0600. Anything else is refused, never repaired behind the user's
back. An object is named by a hash of the kernels' source, the processor and its features, and the LLVM
version.
"""

import ctypes
import functools
import hashlib
import logging
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenload._optional import require
from evenload.errors import ConfigError

__all__ = ["Program", "cache_directory", "host_features", "load", "sources"]

_MAGIC = b"evenload object 1\n"
log = logging.getLogger(__name__)


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


def sources(*modules: str) -> tuple[str, ...]:
    """Return the files of modules that are named relative to ``evenload.gpu``, such as ``llvm.code``."""
    root = Path(__file__).parents[1]
    return tuple(str(root.joinpath(*module.split(".")).with_suffix(".py")) for module in modules)


def cache_directory() -> Path:
    """``EVENLOAD_KERNEL_CACHE``, else ``$XDG_CACHE_HOME/evenload/kernels``, else
    ``~/.cache/evenload/kernels``."""
    chosen = os.environ.get("EVENLOAD_KERNEL_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "evenload" / "kernels"


@functools.cache
def host_features() -> frozenset[str]:
    """Instruction set extensions of this processor, in LLVM's names, e.g. ``avx512ifma``."""
    binding = _binding()
    return frozenset(name for name, present in binding.get_host_cpu_features().items() if present)


def load(
    name: str, signatures: Mapping[str, int], build: Callable[[], str], sources: tuple[str, ...]
) -> Program:
    """The program ``name``; ``build`` returns its IR and is called only if no object is cached.

    ``signatures`` maps each kernel to its number of arguments; ``sources`` are the files that the IR depends
    on.
    Raises MissingExtra without llvmlite, and ConfigError if the cache is not private to this user.
    """
    if sys.byteorder != "little":
        raise ConfigError("the kernels need a little-endian processor, this one is big-endian")
    binding = _binding()
    machine = _target_machine()
    key = _key(name, sources, binding)
    folder = _private_directory()
    path = folder / f"{name}-{key[:32]}.o" if folder else None
    code = _read_object(path, key) if path else None
    was_cached = code is not None
    if code is None:
        code = compile_ir(build(), machine)
        if path:
            _write_object(path, key, code)
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    kernels = {
        kernel: ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * n)(engine.get_function_address(kernel))
        for kernel, n in signatures.items()
    }
    return Program(name, kernels, was_cached, engine)


def compile_ir(text: str, machine: Any) -> bytes:
    """Optimise the IR for ``machine`` and return the object file."""
    binding = _binding()
    module = binding.parse_assembly(text)
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    module.verify()
    options = binding.create_pipeline_tuning_options(speed_level=2)
    builder = binding.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return machine.emit_object(module)


def _binding() -> Any:
    binding = require("llvmlite.binding", extra="kernels", why="running generated kernels")
    _initialize(binding)
    return binding


@functools.cache
def _initialize(binding: Any) -> None:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()


def _target_machine() -> Any:
    binding = _binding()
    features = binding.get_host_cpu_features().flatten()
    target = binding.Target.from_default_triple()
    return target.create_target_machine(
        cpu=binding.get_host_cpu_name(), features=features, opt=2, codemodel="jitdefault", jit=True
    )


def _key(name: str, sources: tuple[str, ...], binding: Any) -> str:
    digest = hashlib.sha256()
    for source in sorted(sources):
        digest.update(Path(source).read_bytes() + b"\0")
    facts = (
        name,
        binding.get_default_triple(),
        binding.get_host_cpu_name(),
        binding.get_host_cpu_features().flatten(),
        binding.llvm_version_info,
    )
    digest.update(repr(facts).encode())
    return digest.hexdigest()


def _private_directory() -> Path | None:
    """The cache directory, or None where none can be made (a home that cannot be written): kernels are
    compiled each time then. Raises ConfigError if there is one and it is open to others."""
    path = cache_directory()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = path.lstat()
    except OSError as error:
        log.warning("kernels are compiled anew each time: no cache directory (%s)", error)
        return None
    _refuse_unless_private(path, facts, 0o700)
    return path


def _refuse_unless_private(path: Path, facts: os.stat_result, allowed: int) -> None:
    if os.name != "posix":
        return
    mode, wanted = stat.S_IMODE(facts.st_mode), stat.S_ISDIR if allowed & 0o100 else stat.S_ISREG
    if not wanted(facts.st_mode) or facts.st_uid != os.getuid() or mode & ~allowed:
        kind = {stat.S_IFLNK: "a link", stat.S_IFIFO: "a pipe"}.get(stat.S_IFMT(facts.st_mode), "")
        raise ConfigError(
            f"{path} holds machine code but is {kind or 'open to others'} "
            f"(mode {mode:04o}, owner {facts.st_uid})",
            hint=f"chmod {allowed:o} {path}, or set EVENLOAD_KERNEL_CACHE to a directory of your own",
        )


def _read_object(path: Path, key: str) -> bytes | None:
    """The code, or None.

    What is checked is the open file, so it cannot be exchanged in between; a link is not followed, and a pipe
    not waited for.
    """
    flags = os.O_RDONLY
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"):
        flags |= getattr(os, name, 0)
    try:
        handle = os.open(path, flags)
    except FileNotFoundError:
        return None
    except OSError:
        _refuse_unless_private(path, path.lstat(), 0o600)
        raise
    with open(handle, "rb") as file:
        _refuse_unless_private(path, os.fstat(handle), 0o600)
        content = file.read()
    head, code = content[: len(_MAGIC) + 32], content[len(_MAGIC) + 32 :]
    if head != _MAGIC + hashlib.sha256(key.encode() + code).digest():
        return None  # cut short by a full disk or a crash: compiled anew and replaced
    return code


def _write_object(path: Path, key: str, code: bytes) -> None:
    """Whole or not at all. A disk that is full costs the next process a compilation, and this one nothing."""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".object-")  # created with mode 0600
    except OSError as error:
        log.warning("kernels are compiled anew next time: %s", error)
        return
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_MAGIC + hashlib.sha256(key.encode() + code).digest() + code)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        os.unlink(temporary)
        if not isinstance(error, OSError):
            raise
        log.warning("kernels are compiled anew next time: %s", error)
