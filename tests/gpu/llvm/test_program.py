"""The object cache: private to the user, refused if it is not, compiled anew if damaged."""

import os
import subprocess
import sys

import pytest

from evenload import _private_files
from evenload.errors import ConfigError, MissingExtra
from evenload.gpu.hashing.rules import RULES
from evenload.gpu.llvm import program, programs
from evenload.gpu.llvm.hash.hash_kernels import hash_ir
from evenload.gpu.llvm.hash.poseidon_kernels import poseidon_ir
from evenload.native import machine, store

pytest.importorskip("llvmlite", reason="the extra kernels is not installed")
SIGNATURE = {"answer": 0}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    path = tmp_path / "kernels"
    monkeypatch.setenv("EVENLOAD_KERNEL_CACHE", str(path))
    return path


def answer_ir(value=42):
    from llvmlite import ir

    from evenload.gpu.llvm.ir_builder import add_kernel

    module = ir.Module("answer")
    add_kernel(module, "answer", 0, lambda code: code.const(value))
    return str(module)


def load(build=answer_ir):
    return program.load(program.Recipe("answer", SIGNATURE, build, (__file__,)))


def refuse():
    raise AssertionError("must come from the cache")


def test_the_second_load_does_not_build(cache):
    first = load()
    assert first.answer() == 42
    assert not first.was_cached
    second = load(refuse)
    assert second.was_cached
    assert second.answer() == 42
    with pytest.raises(AttributeError, match="no kernel 'question'"):
        _ = second.question


@pytest.mark.skipif(os.name != "posix", reason="modes are a POSIX matter")
def test_what_is_open_to_others_or_a_link_is_refused(cache, tmp_path):
    """``test_private_files`` has all that it may be."""
    load()
    (file,) = cache.iterdir()
    for path, mode in ((cache, 0o720), (cache, 0o702), (file, 0o660)):
        before = path.stat().st_mode & 0o777
        path.chmod(mode)
        with pytest.raises(ConfigError, match="open to others") as caught:
            load(refuse)
        assert "chmod go-w" in caught.value.hint
        path.chmod(before)
    file.symlink_to(file.rename(tmp_path / "elsewhere.o"))
    with pytest.raises(ConfigError, match="is a link"):
        load(refuse)


def test_an_object_that_is_exchanged_after_the_check_is_not_what_is_read(cache, monkeypatch):
    """The check and the reading are of one open file."""
    load()
    (file,) = cache.iterdir()
    real = _private_files.refuse_unless_own

    def exchange(path, *facts, **how):
        real(path, *facts, **how)
        if path == file:
            file.unlink()
            file.write_bytes(b"evil")

    monkeypatch.setattr(_private_files, "refuse_unless_own", exchange)
    assert load(refuse).answer() == 42


@pytest.mark.parametrize("call", ["mkdir", "fdopen", "replace"])
def test_without_a_place_for_objects_kernels_run_all_the_same(cache, monkeypatch, caplog, call):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.Path if call == "mkdir" else os, call, full)
    assert load().answer() == 42
    assert not cache.exists() or not list(cache.iterdir())
    assert "No space left" in caplog.text


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b[:10], lambda b: b"", lambda b: b[:99] + b"!" + b[100:]]
)
def test_a_damaged_object_is_compiled_anew(cache, damage):
    load()
    (file,) = cache.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    again = load()
    assert not again.was_cached
    assert again.answer() == 42
    assert load(refuse).was_cached


def test_another_source_is_another_object(cache, tmp_path):
    source = tmp_path / "kernel.py"
    for value in (1, 2):
        source.write_text(f"version {value}")
        loaded = program.load(
            program.Recipe("answer", SIGNATURE, lambda value=value: answer_ir(value), (str(source),))
        )
        assert loaded.answer() == value
    assert len(list(cache.iterdir())) == 2


def test_without_llvmlite_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "llvmlite.binding", None)
    with pytest.raises(MissingExtra) as caught:
        load(refuse)
    assert caught.value.hint == "pip install 'evenload[kernels]'"


def test_importing_loads_no_compiler_and_no_driver():
    code = """if True:
        import sys, evenload.gpu, evenload.zk, evenload.zk.prover
        import evenload.gpu.wgsl.context, evenload.gpu.wgsl.hashes, evenload.merkle.wgsl_engine
        print([name for name in ("llvmlite", "numba", "wgpu") if name in sys.modules])
    """
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=550
    )
    assert done.stdout.split() == ["[]"]


@pytest.mark.slow
def test_the_portable_kernels_compile_for_arm64():
    """By this machine's LLVM; that what is shipped is of this very code is for native/test_shipped.py."""
    try:
        machine.initialize_all_targets()
        arm64 = machine.machine_for("armv8-a")
    except RuntimeError as error:
        pytest.skip(f"this llvmlite has no AArch64 back end: {error}")
    assert "sha256rnds2" in hash_ir("bitcoin", "sha")
    for text in (programs._scalar_ir(), poseidon_ir("word64"), *(hash_ir(name, 128) for name in RULES)):
        assert machine.compile_ir(text, arm64)[:4] == b"\x7fELF"
