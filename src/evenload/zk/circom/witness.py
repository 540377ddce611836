"""A circuit's WASM and its inputs to the witness, word for word as snarkjs calculates it.

Source of the protocol: circom 2's ``witness_calculator.js``.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evenload._private_files import plain_file
from evenload.errors import EvenloadError, FormatError, printable, quoted
from evenload.gpu.field import FR
from evenload.zk.circom.input_values import signal_hash
from evenload.zk.circom.sandbox import Limits, Sandbox, Stopped

N32 = 8  # words of 32 bits in an element
AT_ONCE = 2048  # elements that are carried over in one call
MOST_MESSAGE, MOST_LOGGED = 2000, 100
WHY = {
    1: "a signal was not found",
    2: "too many signals were set",
    3: "a signal was set twice",
    4: "an assertion failed",
    5: "it has too little memory",
    6: "an index of an input is beyond its size",
}
# What a circuit exports: numbers of arguments and results, all of them i32. Older ones lack the last.
FUNCTIONS = {
    "getVersion": (0, 1), "getFieldNumLen32": (0, 1), "getRawPrime": (0, 0), "getWitnessSize": (0, 1),
    "getInputSize": (0, 1), "readSharedRWMemory": (1, 1), "writeSharedRWMemory": (2, 0), "init": (1, 0),
    "setInputSignal": (3, 0), "getWitness": (1, 0), "getMessageChar": (0, 1), "getInputSignalSize": (2, 1),
}  # fmt: skip
OPTIONAL = {"getMessageChar", "getInputSignalSize"}
# Carries elements over in the sandbox: a call from Python for each word would take longer than the circuit.
CARRIER = """(module
  (import "circuit" "readSharedRWMemory" (func $read (param i32) (result i32)))
  (import "circuit" "writeSharedRWMemory" (func $write (param i32 i32)))
  (import "circuit" "getWitness" (func $witness (param i32)))
  (import "circuit" "setInputSignal" (func $signal (param i32 i32 i32)))
  (memory (export "words") 1 1)
  (func (export "collect") (param $first i32) (param $n i32) (local $k i32) (local $j i32)
    (loop $each
      (if (i32.lt_u (local.get $k) (local.get $n)) (then
        (call $witness (i32.add (local.get $first) (local.get $k)))
        (local.set $j (i32.const 0))
        (loop $word
          (i32.store
            (i32.add (i32.shl (local.get $k) (i32.const 5)) (i32.shl (local.get $j) (i32.const 2)))
            (call $read (local.get $j)))
          (local.set $j (i32.add (local.get $j) (i32.const 1)))
          (br_if $word (i32.lt_u (local.get $j) (i32.const 8))))
        (local.set $k (i32.add (local.get $k) (i32.const 1)))
        (br $each)))))
  (func (export "supply") (param $high i32) (param $low i32) (param $first i32) (param $n i32)
    (local $k i32) (local $j i32)
    (loop $each
      (if (i32.lt_u (local.get $k) (local.get $n)) (then
        (local.set $j (i32.const 0))
        (loop $word
          (call $write (local.get $j)
            (i32.load
              (i32.add (i32.shl (local.get $k) (i32.const 5)) (i32.shl (local.get $j) (i32.const 2)))))
          (local.set $j (i32.add (local.get $j) (i32.const 1)))
          (br_if $word (i32.lt_u (local.get $j) (i32.const 8))))
        (call $signal (local.get $high) (local.get $low) (i32.add (local.get $first) (local.get $k)))
        (local.set $k (i32.add (local.get $k) (i32.const 1)))
        (br $each))))))
"""


class InputsRefused(EvenloadError):
    """The circuit did not take its inputs: one is missing or unknown, or they do not satisfy it."""


def calculate_witness(
    circuit: str | Path | bytes,
    inputs: Mapping[str, Sequence[int]],
    *,
    limits: Limits | None = None,
    accept: Callable[[int], None] | None = None,
    log: Callable[[str], None] | None = None,
) -> np.ndarray:
    """[n, 4] uint64, the value of every wire: what ``snarkjs wtns calculate`` writes.

    circuit  circuit.wasm, or its bytes, compiled by circom 2 for BN254
    inputs   each input signal's values in [0, r), from ``parse_inputs``
    limits   of time, memory and code
    accept   called with n before the values are read, and may raise
    log      called with each line that the circuit logs, at most 100
    Raises InputsRefused in circom's words, with signal, template and line; FormatError for a file that is no
    such circuit or needs more than ``limits``, OSError, MissingExtra without wasmtime.
    """
    limits = limits or Limits()
    is_path = isinstance(circuit, str | Path)
    name = printable(str(circuit)) if is_path else "<bytes>"
    code = _read(Path(circuit), limits.code_bytes) if is_path else bytes(circuit)
    run = _Circuit(name, limits, log)
    try:
        with run.sandbox.limited():
            run.start(code)
            run.set_inputs(inputs)
            return run.witness(accept)
    except Stopped as why:
        raise FormatError(
            f"{name}: the circuit {why}", hint="allow it more time or memory if you trust it"
        ) from None


def _read(path: Path, most_bytes: int) -> bytes:
    with plain_file(path) as file:
        return file.read(most_bytes + 1)


class _Circuit:
    """A circuit in its sandbox, with the messages that it has written."""

    def __init__(self, name: str, limits: Limits, log: Callable[[str], None] | None):
        self.name, self._limits, self._log = name, limits, log
        self._faults: list[str] = []
        self._line: list[str] = []
        self._n_logged = 0
        self._exports: Any = {}
        self._carrier: Any = {}
        self.sandbox = Sandbox(name, limits)

    def start(self, code: bytes) -> None:
        """Load the circuit and what carries elements. Raises FormatError."""
        self._exports = self.sandbox.load(code, {
            "runtime.exceptionHandler": self.sandbox.host_function(self._refuse, 1),
            "runtime.printErrorMessage": self.sandbox.host_function(self._take_fault, 0),
            "runtime.writeBufferMessage": self.sandbox.host_function(self._take_words, 0),
            "runtime.showSharedRWMemory": self.sandbox.host_function(self._take_number, 0),
        })  # fmt: skip
        self._check()
        carried = ("readSharedRWMemory", "writeSharedRWMemory", "getWitness", "setInputSignal")
        functions = {f"circuit.{one}": self._exports[one] for one in carried}
        self._carrier = self.sandbox.load(CARRIER, functions)

    def _call(self, function: str, *args: int) -> int:
        found = self._exports.get(function)
        if found is None:  # a message before it is loaded, or from one that exports none
            raise FormatError(f"{self.name}: no circuit of circom 2: it writes where it has no {function}")
        return found(self.sandbox.store, *(_signed(arg) for arg in args))

    def _check(self) -> None:
        """Raises FormatError unless it is a circuit of circom 2 over BN254."""
        hint = "compile the circuit with circom 2: circom circuit.circom --wasm"
        for name, shape in FUNCTIONS.items():
            found = self.sandbox.shape_of(self._exports.get(name))
            if found != shape and not (name in OPTIONAL and name not in self._exports):
                raise FormatError(f"{self.name}: no circuit of circom 2: it has no such {name}", hint=hint)
        version = self._call("getVersion")
        if version != 2:
            raise FormatError(f"{self.name}: made for version {version} of circom", hint=hint)
        n32 = self._call("getFieldNumLen32")
        self._call("getRawPrime")
        if n32 != N32 or self._shared() != FR.modulus:
            raise FormatError(
                f"{self.name}: the circuit is not over BN254", hint="leave out circom's option --prime"
            )

    def _shared(self) -> int:
        """The element in the memory that circuit and caller share."""
        words = [self._call("readSharedRWMemory", k) & 0xFFFFFFFF for k in range(N32)]
        return sum(word << 32 * k for k, word in enumerate(words))

    def set_inputs(self, inputs: Mapping[str, Sequence[int]]) -> None:
        self._call("init", 0)
        n_set, n_needed = 0, self._call("getInputSize") & 0xFFFFFFFF
        for name, values in inputs.items():
            self._check_size(name, len(values))
            self._faults.clear()
            content = b"".join(value.to_bytes(4 * N32, "little") for value in values)
            for first in range(0, len(values), AT_ONCE):
                part = content[first * 4 * N32 : (first + AT_ONCE) * 4 * N32]
                self._carrier["words"].write(self.sandbox.store, part, 0)
                n = len(part) // (4 * N32)
                hashed = (_signed(half) for half in signal_hash(name))
                self._carrier["supply"](self.sandbox.store, *hashed, first, n)
            n_set += len(values)
        if n_set < n_needed:
            raise InputsRefused(
                f"{self.name}: not all inputs are set: {n_set} of {n_needed} values were given",
                hint=f"given are {quoted(list(inputs))}; look for signals that are missing",
            )

    def _check_size(self, name: str, n_given: int) -> None:
        """Raises InputsRefused for a signal that the circuit does not have, or has with another size."""
        if "getInputSignalSize" not in self._exports:  # before circom 2.0.7; it says so itself then
            return
        n = self._call("getInputSignalSize", *signal_hash(name))
        if n < 0 or (n == 0 and n_given):  # circom's hash table answers 0 for names that it does not have
            raise InputsRefused(f"{self.name}: signal {quoted(name)} is no input of the circuit")
        if n != n_given:
            raise InputsRefused(f"{self.name}: signal {quoted(name)} takes {n} values, {n_given} were given")

    def witness(self, accept: Callable[[int], None] | None) -> np.ndarray:
        n = self._call("getWitnessSize") & 0xFFFFFFFF
        if n > self._limits.memory_bytes // (4 * N32):
            raise FormatError(f"{self.name}: claims {n:,} wires, which its memory cannot hold")
        if accept:
            accept(n)
        values = np.empty((n, 4), np.uint64)
        for first in range(0, n, AT_ONCE):
            part = values[first : first + AT_ONCE]
            self._carrier["collect"](self.sandbox.store, first, len(part))
            words = self._carrier["words"].read(self.sandbox.store, 0, 4 * N32 * len(part))
            part[:] = np.frombuffer(words, np.uint64).reshape(-1, 4)
        return values

    # --- what the circuit calls -------------------------------------------------------------------
    def _refuse(self, code: int) -> None:
        where = "; ".join(self._faults)
        what = WHY.get(code, f"error {code}")
        raise InputsRefused(printable(f"{self.name}: {what}" + (f": {where}" if where else ""), 400),
                            hint="look at the line that is named, and at the inputs")  # fmt: skip

    def _message(self) -> str:
        letters = []
        while len(letters) < MOST_MESSAGE and (code := self._call("getMessageChar") & 0xFF):
            letters.append(chr(code))
        return "".join(letters)

    def _take_fault(self) -> None:
        text = printable(self._message().strip().rstrip("."))
        if text and len(self._faults) < 8:
            self._faults.append(text)

    def _take_words(self) -> None:
        text = self._message()
        if text != "\n":
            if len(self._line) < MOST_LOGGED:
                self._line.append(text)
            return
        self._n_logged += 1
        if self._log and self._n_logged <= MOST_LOGGED:
            self._log(printable(" ".join(self._line), 1000))
        self._line.clear()

    def _take_number(self) -> None:
        if len(self._line) < MOST_LOGGED:
            self._line.append(str(self._shared()))


def _signed(value: int) -> int:
    """A word of 32 bits as WebAssembly's i32."""
    return value - (1 << 32) if value >= 1 << 31 else value
