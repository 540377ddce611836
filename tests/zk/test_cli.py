"""evenload prove, verify and zk, as a user types them."""

import json

import pytest
from click.testing import CliRunner

from evenload.cli import cli
from evenload.errors import EvenloadError
from evenload.zk.devsetup import WARNING

pytest.importorskip("llvmlite", reason="the kernels extra is not installed")


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
    proved = run("prove", key, tmp_path / "witness.wtns", "-o", tmp_path / "proofs", "--json", "--threads", 1)
    page = json.loads(proved.stdout)
    assert (proved.return_value, page["failed"], page["schema"]) == (0, 0, 1)
    files = [tmp_path / "proofs" / f"witness.{name}.json" for name in ("public", "proof")]
    checked = run("verify", key, *files)
    assert (checked.return_value, checked.stdout) == (0, "valid\n")
    run("zk", "vkey", key, "-o", tmp_path / "v.json")
    assert run("verify", tmp_path / "v.json", *files).return_value == 0
    assert json.loads(run("zk", "vkey", key).stdout) == json.loads((tmp_path / "v.json").read_text())


@pytest.mark.parametrize("name", ["public8", "boundary64", "boundary65", "dup_points"])
def test_an_invalid_proof_is_exit_code_one(multiplier, name):
    """A proof that is valid, but of another circuit."""
    other = multiplier.parent / name
    done = run("verify", other / "vkey.json", other / "public.json", multiplier / "proof.json", "--json")
    page = json.loads(done.stdout)
    assert (done.return_value, page["valid"]) == (1, False)
    assert "equation" in page["why_not"]


@pytest.mark.parametrize("how", [["--threads", "1"], ["--devices", "cpu*1"]])
def test_failures_are_listed_and_the_others_proved(multiplier, tmp_path, how):
    good, bad = tmp_path / "good.wtns", tmp_path / "bad.wtns"
    content = (multiplier / "witness.wtns").read_bytes()
    good.write_bytes(content)
    bad.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    done = run("prove", multiplier / "circuit.zkey", good, bad, "-o", tmp_path / "out", "--json", *how)
    page = json.loads(done.stdout)
    assert (done.return_value, page["failed"]) == (1, 1)
    assert [row["error"] is None for row in page["proofs"]] == [True, False]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "good.proof.json",
        "good.public.json",
    ]


def test_a_bad_key_is_one_error(multiplier, tmp_path):
    key = tmp_path / "k.zkey"
    key.write_bytes((multiplier / "circuit.zkey").read_bytes()[:-7])
    for how in (["--threads", "1"], ["--devices", "cpu*1"]):
        done = run("prove", key, multiplier / "witness.wtns", "-o", tmp_path / "out", *how)
        assert isinstance(done.exception, EvenloadError)
        assert "section 10" in str(done.exception)


def test_witnesses_of_one_name_are_refused(multiplier, tmp_path):
    other = tmp_path / "witness.wtns"
    other.write_bytes((multiplier / "witness.wtns").read_bytes())
    done = run(
        "prove", multiplier / "circuit.zkey", multiplier / "witness.wtns", other, "-o", tmp_path / "out"
    )
    assert isinstance(done.exception, EvenloadError)
    assert "'witness'" in str(done.exception)


def test_names_of_contributions_are_made_printable():
    from evenload.zk.formats.contributions import contribution_names

    parameters = b"\x01\x05a\x1b[2J"
    head = bytes(64) + (1).to_bytes(4, "little") + bytes(64 * 3 + 128 + 64) + bytes(4)
    good = head + len(parameters).to_bytes(4, "little") + parameters
    assert contribution_names(good) == ["a?[2J"]
    for cut in (0, 66, 70, 200, len(good) - 3):
        assert all(isinstance(name, str) for name in contribution_names(good[:cut]))


def test_bench_measures_and_compares():
    done = run("bench", "prove", "--proofs", 2, "--constraints", 40, "--devices", "cpu*1", "--json")
    page = json.loads(done.stdout)
    (row,) = page["rows"]
    assert (page["schema"], row["n_devices"], row["speed_up"], row["efficiency"]) == (1, 1, 1.0, 1.0)
    assert row["work_s"] > 0
    assert row["latency_s"] > 0
    refused = run("bench", "prove", "--zkey", "k.zkey")
    assert isinstance(refused.exception, EvenloadError)
