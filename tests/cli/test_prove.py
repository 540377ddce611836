"""evenload prove, verify and zk, as a user types them."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from evenload.cli import cli
from evenload.cli import prove as module
from evenload.errors import EvenloadError
from evenload.native import machine
from evenload.zk.devsetup import WARNING

pytest.importorskip("llvmlite", reason="the extra kernels is not installed")

DATA = Path(__file__).parents[1] / "data" / "zk"


@pytest.fixture
def multiplier():
    """The folder of a circuit that snarkjs made a key, a witness and a proof for."""
    return DATA / "multiplier"


def run(*arguments):
    return CliRunner().invoke(cli, [str(a) for a in arguments], standalone_mode=False)


def test_from_circuit_to_verified_proof(tmp_path):
    made = run("zk", "circuit", "poseidon", "--size", 2, "-o", tmp_path)
    assert made.exception is None
    key = tmp_path / "k.zkey"
    setup = run("zk", "devsetup", tmp_path / "circuit.r1cs", "-o", key, "--seed", "x", "-q")
    assert WARNING in setup.stderr
    facts = json.loads(run("zk", "info", key, "--check", "--json").stdout)
    assert facts["contributions"] == [WARNING]
    assert facts["schema"] == 1
    proved = run(
        "zk", "prove", key, tmp_path / "witness.wtns", "-o", tmp_path / "proofs", "--json", "--threads", 1
    )
    page = json.loads(proved.stdout)
    assert (proved.return_value, page["failed"], page["schema"]) == (0, 0, 1)
    files = [tmp_path / "proofs" / f"witness.{name}.json" for name in ("public", "proof")]
    checked = run("zk", "verify", key, *files)
    assert (checked.return_value, checked.stdout) == (0, "valid\n")
    run("zk", "vkey", key, "-o", tmp_path / "v.json")
    assert run("zk", "verify", tmp_path / "v.json", *files).return_value == 0
    assert json.loads(run("zk", "vkey", key).stdout) == json.loads((tmp_path / "v.json").read_text())
    contract = run("zk", "solidity", key, "--name", "Members", "-o", tmp_path / "Members.sol")
    assert contract.exception is None
    assert "contract Members {" in (tmp_path / "Members.sol").read_text()
    assert run("zk", "solidity", tmp_path / "v.json").stdout.startswith("// SPDX")


@pytest.mark.parametrize("name", ["public8", "dup_points"])
def test_an_invalid_proof_is_exit_code_one(multiplier, name):
    """A proof that is valid, but of another circuit."""
    other = multiplier.parent / name
    done = run(
        "zk", "verify", other / "vkey.json", other / "public.json", multiplier / "proof.json", "--json"
    )
    page = json.loads(done.stdout)
    assert (done.return_value, page["valid"]) == (1, False)
    assert "equation" in page["why_not"]


def test_many_are_answered_each(multiplier, tmp_path):
    good = [multiplier / "public.json", multiplier / "proof.json"]
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    missing = tmp_path / "nothing.json"
    wrong = [multiplier.parent / "dup_points" / name for name in ("public.json", "proof.json")]
    pairs = [*good, good[0], broken, *wrong, good[0], missing, *good]
    done = run("zk", "verify", multiplier / "vkey.json", *pairs, "--json")
    page = json.loads(done.stdout)
    assert (done.return_value, page["valid"]) == (1, False)
    assert [row["valid"] for row in page["proofs"]] == [True, False, False, False, True]
    assert all(row["why_not"] for row in page["proofs"] if not row["valid"])
    assert "nothing.json" in page["proofs"][3]["why_not"]
    told = run("zk", "verify", multiplier / "vkey.json", *good, *good)
    assert (told.return_value, told.stdout) == (0, f"{good[1]}: valid\n" * 2)
    odd = run("zk", "verify", multiplier / "vkey.json", *good, good[0])
    assert "3 files are no pairs" in str(odd.exception)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_json_file_over_ten_megabytes_is_refused_unread(multiplier, tmp_path, place):
    files = [multiplier / name for name in ("vkey.json", "public.json", "proof.json")]
    files[place] = tmp_path / "large.json"
    with files[place].open("wb") as file:
        file.truncate(1 << 40)
    done = run("zk", "verify", *files)
    assert isinstance(done.exception, OSError)
    assert done.exception.filename == str(files[place])
    assert "more than 10,000,000 bytes" in done.exception.strerror


@pytest.mark.parametrize("how", [["--threads", "1"], ["--devices", "cpu*1"]])
def test_failures_are_listed_and_the_others_proved(multiplier, tmp_path, how):
    good, bad = tmp_path / "good.wtns", tmp_path / "bad.wtns"
    content = (multiplier / "witness.wtns").read_bytes()
    good.write_bytes(content)
    bad.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    done = run("zk", "prove", multiplier / "circuit.zkey", good, bad, "-o", tmp_path / "out", "--json", *how)
    page = json.loads(done.stdout)
    assert (done.return_value, page["failed"]) == (1, 1)
    assert [row["error"] is None for row in page["proofs"]] == [True, False]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "good.proof.json",
        "good.public.json",
    ]


@pytest.fixture
def out(multiplier, tmp_path):
    """A folder with an older proof of the same name."""
    assert proved(multiplier, tmp_path).return_value == 0
    return tmp_path


def proved(multiplier, out):
    files = (multiplier / "circuit.zkey", multiplier / "witness.wtns")
    return run("zk", "prove", *files, "-o", out, "--json", "-q")


# On disk, whenever the writing ends: verified proofs with their own public inputs, or nothing.


@pytest.mark.parametrize("fails_at", [0, 1])
def test_a_full_disk_is_the_error_of_one_witness(multiplier, out, monkeypatch, fails_at):
    calls = iter(range(2))

    def full(handle):
        if next(calls) == fails_at:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, "fsync", full)
    done = proved(multiplier, out)
    row = json.loads(done.stdout)["proofs"][0]
    assert (done.return_value, row["proof"]) == (1, None)
    assert "not written" in row["error"]
    assert "No space left" in row["error"]
    assert [path.name for path in out.iterdir()] == ["witness.public.json"]


@pytest.mark.parametrize("dies_at", [0, 1])
def test_death_between_writing_and_renaming(multiplier, out, monkeypatch, dies_at):
    """Like a killed process: nothing after it is run, so what was written keeps its temporary name."""
    calls, real, gone = iter(range(2)), module.os.replace, module.os.unlink

    class Killed(BaseException):
        pass

    def die(source, target):
        if target.parent == out and next(calls) == dies_at:  # not in the announcement of the job
            raise Killed
        real(source, target)

    keeps = lambda path, **rest: None if "/.witness." in str(path) else gone(path, **rest)  # noqa: E731
    monkeypatch.setattr(module.os, "replace", die)
    monkeypatch.setattr(module.os, "unlink", keeps)
    with pytest.raises(Killed):
        proved(multiplier, out)
    names = sorted(path.name for path in out.iterdir())
    assert "witness.proof.json" not in names
    assert [name.startswith(".witness.") for name in names] == [True, False]
    monkeypatch.undo()
    assert proved(multiplier, out).return_value == 0
    files = [out / f"witness.{name}.json" for name in ("public", "proof")]
    assert run("zk", "verify", multiplier / "vkey.json", *files).return_value == 0


def test_only_the_owner_writes_and_a_link_in_the_way_is_replaced(multiplier, out, tmp_path):
    assert {path.stat().st_mode & 0o777 for path in out.iterdir()} == {0o644}
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    for name in ("public", "proof"):
        (out / f"witness.{name}.json").unlink()
        (out / f"witness.{name}.json").symlink_to(victim)
    assert proved(multiplier, out).return_value == 0
    assert victim.read_text() == "untouched"
    assert not (out / "witness.proof.json").is_symlink()


def has_adapter() -> bool:
    from evenload.devices import DevicePool

    return any(one.family == "wgpu" and one.backend != "opengl" for one in DevicePool.discover())


def test_prove_over_a_gpu(multiplier, tmp_path):
    if not has_adapter():
        pytest.skip("no adapter for WGSL kernels")
    files = (multiplier / "circuit.zkey", multiplier / "witness.wtns")
    assert run("zk", "prove", *files, "-o", tmp_path, "--devices", "wgpu:0").return_value == 0
    files = [tmp_path / f"witness.{name}.json" for name in ("public", "proof")]
    assert run("zk", "verify", multiplier / "vkey.json", *files).return_value == 0


def test_a_bad_key_is_one_error(multiplier, tmp_path):
    key = tmp_path / "k.zkey"
    key.write_bytes((multiplier / "circuit.zkey").read_bytes()[:-7])
    for how in (["--threads", "1"], ["--devices", "cpu*1"]):
        done = run("zk", "prove", key, multiplier / "witness.wtns", "-o", tmp_path / "out", *how)
        assert isinstance(done.exception, EvenloadError)
        assert "section 10" in str(done.exception)


def test_witnesses_of_one_name_are_refused(multiplier, tmp_path):
    other = tmp_path / "witness.wtns"
    other.write_bytes((multiplier / "witness.wtns").read_bytes())
    done = run(
        "zk", "prove", multiplier / "circuit.zkey", multiplier / "witness.wtns", other, "-o", tmp_path / "out"
    )
    assert isinstance(done.exception, EvenloadError)
    assert "'witness'" in str(done.exception)


def test_a_process_that_proves_with_a_kept_key_imports_only_what_a_proof_needs(tmp_path):
    code = """if True:
        import sys
        from evenload.cli import main
        try:
            main(sys.argv[1:])
        except SystemExit as left:
            print(left.code, *sorted(sys.modules))
    """
    command = [sys.executable, "-c", code, "zk", "prove", str(DATA / "public8" / "circuit.zkey"),
               str(DATA / "public8" / "witness.wtns"), "-o", str(tmp_path), "-q"]  # fmt: skip
    environment = os.environ | {"EVENLOAD_KERNEL_CACHE": str(tmp_path / "cache")}
    for _ in range(2):
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=550, check=True
        )
    status, *modules = done.stdout.splitlines()[-1].split()
    assert status == "0"
    unneeded = {"torch", "scipy", "numba", "psutil", "asyncio", "multiprocessing", "yaml", "rich", "numpy.ma",
                "evenload.events", "evenload.executor", "evenload.devices.pool", "evenload.native.code_hash",
                "evenload.gpu.wgsl", "evenload.settings", "subprocess",
                "click.shell_completion"}  # fmt: skip
    assert not unneeded & {*modules}
    if machine.baselines_here() and platform.machine() == "x86_64":  # else LLVM loads the kernels
        assert "llvmlite" not in modules
