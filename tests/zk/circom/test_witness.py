"""Witnesses by circom's WASM: those of snarkjs byte for byte; refusals with the line; strangers' programs."""

import hashlib
import io
import json
import math
import subprocess
import tracemalloc
from pathlib import Path

import pytest

pytest.importorskip("wasmtime", reason="the extra zk is not installed")

import wasmtime

from evenload.errors import ConfigError, FormatError
from evenload.zk.circom.input_values import parse_inputs
from evenload.zk.circom.sandbox import Limits
from evenload.zk.circom.witness import InputsRefused, calculate_witness
from evenload.zk.formats.witness import write_witness

ROOT = Path(__file__).parents[3]
DATA = ROOT / "tests" / "data" / "zk"
SHARED = ("multiplier", "public8", "boundary64", "boundary65", "dup_points")
LARGER = ("matrix", "rounds", "words", "inverses", "polynomial")


def file_of(values):
    made = io.BytesIO()
    write_witness(made, values)
    return made.getvalue()


@pytest.mark.parametrize("name", SHARED)
def test_of_the_shared_circuits_it_is_the_file_that_snarkjs_wrote(compiled, name):
    inputs = parse_inputs((DATA / name / f"{name}.input.json").read_bytes())
    assert file_of(calculate_witness(compiled(name), inputs)) == (DATA / name / "witness.wtns").read_bytes()


@pytest.mark.parametrize("name", LARGER)
def test_of_larger_circuits_it_has_the_digest_of_what_snarkjs_wrote(compiled, name):
    """``witnesses.json``: of ``snarkjs wtns calculate``, version 0.7.6."""
    lines = []
    inputs = parse_inputs((DATA / "circom" / f"{name}.input.json").read_bytes())
    content = file_of(calculate_witness(compiled(name), inputs, log=lines.append))
    expected = json.loads((DATA / "circom" / "witnesses.json").read_text())[name]
    assert hashlib.sha256(content).hexdigest() == expected
    assert lines == (["ascends: 1"] if name == "matrix" else [])


def test_of_a_circuit_with_buses_it_is_the_file_of_circoms_own_program(compiled, tmp_path):
    """The oracle is the program in JavaScript that circom writes beside the WASM."""
    wasm, inputs, theirs = compiled("buses"), DATA / "circom" / "buses.input.json", tmp_path / "w.wtns"
    program = wasm.with_name("generate_witness.js")
    subprocess.run(["node", program, wasm, inputs, theirs], check=True, capture_output=True, timeout=500)
    assert file_of(calculate_witness(wasm, parse_inputs(inputs.read_bytes()))) == theirs.read_bytes()


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ({"a": [3]}, "not all inputs are set: 1 of 2 values were given"),
        ({"a": [3], "b": [11], "c": [1]}, "signal 'c' is no input of the circuit"),
        ({"a": [3, 4], "b": [11]}, "signal 'a' takes 1 values, 2 were given"),
        ({"a": [], "b": [11]}, "signal 'a' takes 1 values, 0 were given"),
        ({}, "not all inputs are set: 0 of 2 values were given"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(compiled, inputs, why):
    with pytest.raises(InputsRefused, match=why):
        calculate_witness(compiled("multiplier"), inputs)


def test_a_failed_assertion_names_template_and_line(compiled):
    inputs = {"numerators": [1] * 700, "denominators": [1] * 300 + [0] + [1] * 399}
    with pytest.raises(InputsRefused, match=r"an assertion failed: .*template Inverses_1 line: 23"):
        calculate_witness(compiled("inverses"), inputs)


def test_a_witness_that_is_not_wanted_is_not_read(compiled):
    def accept(n):
        assert n == 4
        raise KeyError("another key")

    with pytest.raises(KeyError):
        calculate_witness(compiled("multiplier"), {"a": [3], "b": [11]}, accept=accept)


# --- programs of strangers ------------------------------------------------------------------------
R_WORDS = [0xF0000001, 0x43E1F593, 0x79B97091, 0x2833E848, 0x8181585D, 0xB85045B6, 0xE131A029, 0x30644E72]
PRIME = "".join(f"(if (i32.eq (local.get 0) (i32.const {k})) (then (return (i32.const {word}))))"
                for k, word in enumerate(R_WORDS))  # fmt: skip


def program(**changed):
    """A circuit's program with nothing behind its functions, but for those that are ``changed``."""
    bodies = {
        "getVersion": "(result i32) (i32.const 2)",
        "getFieldNumLen32": "(result i32) (i32.const 8)",
        "getRawPrime": "",
        "readSharedRWMemory": f"(param i32) (result i32) {PRIME} (i32.const 0)",
        "writeSharedRWMemory": "(param i32 i32)",
        "init": "(param i32)",
        "setInputSignal": "(param i32 i32 i32)",
        "getInputSignalSize": "(param i32 i32) (result i32) (i32.const 1)",
        "getInputSize": "(result i32) (i32.const 1)",
        "getWitnessSize": "(result i32) (i32.const 1)",
        "getWitness": "(param i32)",
        "getMessageChar": "(result i32) (i32.const 65)",
    }
    bodies |= {name: body for name, body in changed.items() if name in bodies}
    head = changed.get("head", "")
    functions = "".join(
        f'(func (export "{name}") {body})' for name, body in bodies.items() if body is not None
    )
    return bytes(wasmtime.wat2wasm(f"(module {head} {functions})"))


GROWS = """(param i32)
    (if (i32.eq (memory.grow (i32.const 9000)) (i32.const -1)) (then unreachable))"""
FOREVER = "(loop $l (br $l))"
SAY = '(import "runtime" "printErrorMessage" (func $say))'
IMPORTS = """(import "runtime" "exceptionHandler" (func $refuse (param i32)))
             (import "runtime" "printErrorMessage" (func $say))"""


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"init": f"(param i32) {FOREVER}"}, "the circuit ran longer than 0.2 s"),
        ({"getWitness": f"(param i32) {FOREVER}"}, "the circuit ran longer than 0.2 s"),
        ({"head": f"(func $s {FOREVER}) (start $s)"}, "the circuit ran longer than 0.2 s"),
        ({"init": "(param i32) unreachable"}, r"the circuit stopped: .*unreachable"),
        ({"init": "(param i32) (drop (i32.load (i32.const 99999)))", "head": "(memory 1)"}, "out of bounds"),
        ({"head": "(memory 2000)"}, r"cannot be set up: .*memory"),
        ({"head": "(memory 1)", "init": GROWS}, r"stopped: .*unreachable"),
        ({"getWitnessSize": "(result i32) (i32.const -1)"}, "claims 4,294,967,295 wires"),
        ({"getVersion": "(result i32) (i32.const 1)"}, "made for version 1 of circom"),
        ({"getFieldNumLen32": "(result i32) (i32.const 12)"}, "not over BN254"),
        ({"getWitness": None}, "no circuit of circom 2: it has no such getWitness"),
        ({"head": '(import "env" "open" (func))'}, "imports 'env.open'"),
        ({"head": '(import "wasi_snapshot_preview1" "fd_write" (func (param i32)))'}, "imports 'wasi"),
        ({"head": '(import "runtime" "exceptionHandler" (func (param i64)))'}, "incompatible import type"),
        ({"head": '(import "runtime" "printErrorMessage" (func (result i64)))'}, "incompatible import type"),
        ({"head": f"{SAY} (start $say)"}, "writes where it has no getMessageChar"),
        ({"head": SAY, "init": "(param i32) (call $say)", "getMessageChar": None}, "has no getMessageChar"),
        ({"head": SAY, "init": "(param i32) (call $say)",
          "getMessageChar": "(result i32) (call $say) (i32.const 65)"}, "call stack exhausted"),
        ({"head": "(memory 1) (memory 1)"}, "not a WebAssembly module"),
        ({"head": "(memory i64 1)"}, "not a WebAssembly module"),
        ({"head": "(memory 1 1 shared)"}, "not a WebAssembly module"),
        ({"setInputSignal": "(param i32)"}, "it has no such setInputSignal"),
        ({"getInputSize": "(result i64) (i64.const 1)"}, "it has no such getInputSize"),
    ],
)  # fmt: skip
def test_programs_of_strangers_are_refused_or_stopped(changed, why):
    limits = Limits(time_s=0.2 if "0.2 s" in why else 100.0, memory_bytes=1 << 26)
    with pytest.raises(FormatError, match=why) as caught:
        calculate_witness(program(**changed), {"a": [5]}, limits=limits)
    assert len(str(caught.value)) < 1000


def test_messages_without_end_are_cut():
    talks = program(head=IMPORTS, init="(param i32) (call $say) (call $refuse (i32.const 4))")
    with pytest.raises(InputsRefused, match="an assertion failed: AAAA") as caught:
        calculate_witness(talks, {"a": [5]})
    assert len(str(caught.value)) < 600


def test_a_line_without_end_takes_little_memory():
    words = '(import "runtime" "writeBufferMessage" (func $w))'
    talks = program(head=words, init="(param i32) (loop $l (call $w) (br $l))")
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="ran longer"):
            calculate_witness(talks, {"a": [5]}, limits=Limits(time_s=0.8))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_limits_that_no_clock_takes():
    assert calculate_witness(program(), {"a": [5]}, limits=Limits(time_s=math.inf)).shape == (1, 4)
    for wrong in (math.nan, 0.0, -1.0):
        with pytest.raises(ConfigError, match="leaves no time"):
            Limits(time_s=wrong)


@pytest.mark.parametrize("content", [b"", b"\0asm", b"not a module", b"\0asm\1\0\0\0"])
def test_what_is_no_circuit_is_refused(content):
    with pytest.raises(FormatError, match=r"not a WebAssembly module|no circuit of circom 2"):
        calculate_witness(content, {})


def test_code_above_the_limit_is_refused(tmp_path):
    path = tmp_path / "large.wasm"
    path.write_bytes(program() + bytes(5000))
    with pytest.raises(FormatError, match="bytes of code, at most 1,000"):
        calculate_witness(path, {}, limits=Limits(code_bytes=1000))
