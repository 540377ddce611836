"""A stranger's WebAssembly, run with limits: memory, time, and no imports but those it is given."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from evenload._arguments import seconds
from evenload._optional import require
from evenload.errors import FormatError, printable, quoted


@dataclass(frozen=True, slots=True)
class Limits:
    """A bound of what a program may use: seconds of all its calls, bytes of memory, bytes of code."""

    time_s: float = 600.0
    memory_bytes: int = 1 << 32
    code_bytes: int = 1 << 28

    def __post_init__(self) -> None:
        object.__setattr__(self, "time_s", seconds("time_s", self.time_s))


class Stopped(Exception):
    """The program trapped or ran out of its time; the message is a sentence without its subject."""


class Sandbox:
    """A WebAssembly engine for one program, in which further modules may use what it exports.

    Raises MissingExtra without wasmtime.
    """

    def __init__(self, name: str, limits: Limits):
        self._wasm: Any = require("wasmtime", extra="zk", why="running circuits compiled by circom")
        self.name, self._limits = name, limits
        config = self._wasm.Config()
        config.epoch_interruption = True
        # circom needs none of these, and each is one more way to take memory.
        config.wasm_threads = config.wasm_multi_memory = config.wasm_memory64 = False
        self._engine = self._wasm.Engine(config)
        self.store = self._wasm.Store(self._engine)
        self.store.set_limits(memory_size=limits.memory_bytes, table_elements=1 << 20, instances=2,
                              tables=4, memories=4)  # fmt: skip
        self.store.set_epoch_deadline(1)
        self._left_s = limits.time_s

    def host_function(self, function: Callable[..., None], n_arguments: int) -> Any:
        """A function of Python for a module: it takes integers of 32 bits, and returns nothing."""
        wasm = self._wasm
        return wasm.Func(self.store, wasm.FuncType([wasm.ValType.i32()] * n_arguments, []), function)

    def load(self, code: bytes | str, functions: Mapping[str, Any]) -> Mapping[str, Any]:
        """Compile a module, or its text, give it ``functions`` by "module.name", and return its exports.

        Raises FormatError for what is no module, is too large, or imports anything else. A module may run
        code when it is loaded: call this in ``limited()``.
        """
        wasm = self._wasm
        if len(code) > self._limits.code_bytes:
            raise FormatError(
                f"{self.name}: {len(code):,} bytes of code, at most {self._limits.code_bytes:,}"
            )
        try:
            module = wasm.Module(self._engine, code)
        except wasm.WasmtimeError as error:
            raise FormatError(f"{self.name}: not a WebAssembly module: {_first_line(error)}") from None
        needed = []
        for one in module.imports:
            name = f"{one.module}.{one.name}"
            if name not in functions or not isinstance(one.type, wasm.FuncType):
                raise FormatError(
                    f"{self.name}: imports {quoted(name)}, which circuits of circom 2 do not",
                    hint="compile the circuit with circom 2: circom circuit.circom --wasm",
                )
            needed.append(functions[name])
        try:
            return wasm.Instance(self.store, module, needed).exports(self.store)
        except wasm.WasmtimeError as error:
            raise FormatError(f"{self.name}: cannot be set up: {_first_line(error)}") from None

    def shape_of(self, export: Any) -> tuple[int, int] | None:
        """(number of arguments, of results) of a function of 32-bit integers; None for anything else."""
        if not isinstance(export, self._wasm.Func):
            return None
        kind = export.type(self.store)
        if any(str(one) != "i32" for one in [*kind.params, *kind.results]):
            return None
        return len(kind.params), len(kind.results)

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Run calls within what is left of the time. Raises Stopped for one that trapped or took longer."""
        is_late, started = threading.Event(), time.monotonic()

        def stop() -> None:
            is_late.set()
            self._engine.increment_epoch()

        timer = threading.Timer(min(self._left_s, threading.TIMEOUT_MAX), stop)
        timer.daemon = True
        timer.start()
        try:
            yield
        except (self._wasm.Trap, self._wasm.WasmtimeError) as trap:
            limit = self._limits.time_s
            why = f"ran longer than {limit:g} s" if is_late.is_set() else f"stopped: {_reason(trap)}"
            raise Stopped(why) from None
        finally:
            timer.cancel()
            timer.join()
            self._left_s = max(0.0, self._left_s - (time.monotonic() - started))


def _reason(trap: Any) -> str:
    """The last line that says something: "wasm trap: out of bounds memory access"."""
    lines = [line.strip() for line in str(trap).splitlines() if "trap" in line]
    return printable(lines[-1] if lines else _first_line(trap))


def _first_line(error: Exception) -> str:
    return printable(next(iter(str(error).splitlines()), type(error).__name__))
