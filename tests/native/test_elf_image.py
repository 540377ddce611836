"""Objects that are put into memory without LLVM: as LLVM would, or left to it."""

import ctypes
import os
import random

import pytest

pytest.importorskip("llvmlite", reason="the extra kernels is not installed")

from evenload.native import machine
from evenload.native.elf_image import image_of

pytestmark = pytest.mark.skipif(not machine._listed_by_linux(), reason="x86-64 Linux only")

PLAIN = """
@squares = private constant [4 x i64] [i64 0, i64 1, i64 4, i64 9]
define i64 @square(i64 %k) {
  %at = getelementptr [4 x i64], [4 x i64]* @squares, i64 0, i64 %k
  %value = load i64, i64* %at
  ret i64 %value
}
define i64 @next_square(i64 %k) {
  %next = add i64 %k, 1
  %value = call i64 @square(i64 %next)
  ret i64 %value
}
"""
KEEPS = "@state = global i64 7\ndefine i64 @get() {\n %v = load i64, i64* @state\n ret i64 %v\n}\n"
CALLS = "declare i32 @getpid()\ndefine i32 @get() {\n %v = call i32 @getpid()\n ret i32 %v\n}\n"


def compiled(text):
    return machine.compile_ir(text, machine.host_machine())


def test_code_and_constants_are_where_the_code_looks_for_them():
    image = image_of(compiled(PLAIN))
    call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(image.get_function_address("next_square"))
    assert [call(k) for k in range(3)] == [1, 4, 9]
    assert image.get_function_address("nothing") == 0


@pytest.mark.parametrize(("text", "answer"), [(KEEPS, lambda: 7), (CALLS, os.getpid)], ids=["keeps", "calls"])
def test_what_keeps_or_calls_something_is_left_to_llvm(text, answer):
    code = compiled(text)
    assert image_of(code) is None
    engine = machine.loaded(code)
    assert ctypes.CFUNCTYPE(ctypes.c_int32)(engine.get_function_address("get"))() == answer()


def test_no_bytes_raise():
    code, chance = compiled(PLAIN), random.Random(0)
    for length in [*range(0, 128, 7), *(chance.randrange(len(code)) for _ in range(20))]:
        image_of(code[:length])
    for _ in range(200):
        changed = bytearray(code)
        for _ in range(chance.choice([1, 3])):
            changed[chance.randrange(len(code))] = chance.randrange(256)
        image_of(bytes(changed))


def test_linux_lists_what_llvm_detects():
    """For all names that decide something here."""
    found = machine.binding().get_host_cpu_features()
    names = {"avx512ifma", "sha"}.union(*(kind.features for kind in machine.BASELINES.values()))
    listed = machine._listed_by_linux()
    assert {name for name in names if found.get(name)} == {name for name in names if name in listed}
