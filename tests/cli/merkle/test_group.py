"""``evenload merkle``: roots, proofs and checks from the command line; stdout is the result."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from evenload.cli.bench.command import bench
from evenload.cli.merkle.group import merkle
from evenload.merkle import MerkleTree, StandardTree

VALUES = [["0x" + "11" * 20, "5000000000000000000"], ["0x" + "22" * 20, "2500000000000000000"]]
BLOCK = ["8c14f0db3df150123e6f3dbbf30f8b955a8249b62ac1d1ff16284aefa3d06d87",
         "fff2525b8931402dd09222c50775608f75787bd2b87e56995a7bdd30f79702c4",
         "6359f0868171b1d194cbee1af2f16ea598ae8fad666d9b012c8ed2b79a236ec4",
         "e9a66845e05d5abc0ad04ec80f774a7e585c6e8db975962d069a522137b80c1d"]  # fmt: skip
BLOCK_ROOT = "f3e94742aca4b5ef85488dc37c06c3282295ffec960994b2c0d5ac2a25a95766"


@pytest.fixture
def rows():
    return np.random.default_rng(0).integers(0, 256, (100, 32), dtype=np.uint8)


@pytest.fixture
def file(rows, tmp_path):
    path = tmp_path / "leaves"
    path.write_bytes(rows.tobytes())
    return path


def call(*args, stdin=None):
    return CliRunner().invoke(
        merkle, list(map(str, args)), input=stdin, catch_exceptions=False, standalone_mode=False
    )


@pytest.fixture
def refused(command):
    def told(*args):
        code, out, err = command("merkle", *args)
        assert out == ""
        return code, err

    return told


def test_root_of_a_file_of_stdin_and_of_an_array(rows, file, tmp_path):
    root = MerkleTree(rows).root.hex()
    np.save(tmp_path / "leaves.npy", rows)
    assert call("root", file).stdout == root + "\n"
    assert call("root", "-", stdin=rows.tobytes()).stdout == root + "\n"
    assert call("root", tmp_path / "leaves.npy").stdout == root + "\n"
    shown = json.loads(call("root", file, "--json").stdout)
    assert shown == {"schema": 1, "scheme": "rfc6962", "leaves": 100, "root": root, "mutated": False}


def test_root_over_devices(rows, file):
    shown = json.loads(call("root", file, "--devices", "cpu*2", "--json").stdout)
    assert shown["root"] == MerkleTree(rows).root.hex()
    assert shown["devices"] == ["cpu:0", "cpu:1"]


def test_bitcoin_as_explorers_show_it():
    text = "\n".join(BLOCK) + "\n"
    result = call("root", "-", "--scheme", "bitcoin", "--hex", "--reverse", stdin=text)
    assert result.stdout.strip() == BLOCK_ROOT
    assert result.stderr == ""
    forged = call("root", "-", "--scheme", "bitcoin", "--hex", stdin="\n".join([*BLOCK[:3], BLOCK[2]]))
    assert "CVE-2012-2459" in forged.stderr


def test_lines_without_their_ends():
    tree = MerkleTree()
    tree.append_records([b"one", b"", b"three"])
    assert call("root", "-", "--lines", stdin="one\r\n\nthree").stdout.strip() == tree.root.hex()


def test_values_of_an_airdrop(tmp_path):
    path = tmp_path / "values.json"
    path.write_text(json.dumps(VALUES))
    result = call("root", path, "--scheme", "openzeppelin", "--types", "address,uint256")
    assert result.stdout.strip() == StandardTree.of(VALUES, ["address", "uint256"]).root.hex()


def test_prove_and_verify(rows, file, tmp_path):
    proofs, tree = tmp_path / "proofs.jsonl", MerkleTree(rows)
    assert call("prove", file, 5, 77, "--grown-from", 60, "-o", proofs).stdout.strip() == str(proofs)
    leaves = ["--leaf", rows[5].tobytes().hex(), "--leaf", "0x" + rows[77].tobytes().hex()]
    roots = ["--root", tree.root.hex(), "--old-root", tree.root_at(60).hex()]
    valid = call("verify", proofs, *roots, *leaves)
    assert (valid.return_value, valid.stdout) == (0, "valid\n")
    wrong = call("verify", proofs, *roots, *leaves[2:], *leaves[:2], "--json")
    assert wrong.return_value == 1
    assert json.loads(wrong.stdout) == {"schema": 1, "valid": False, "proofs": [False, False, True]}


def test_a_multiproof(rows, file, tmp_path):
    proofs, tree = tmp_path / "proof.json", StandardTree(rows)
    call("prove", file, 3, 4, 50, "--scheme", "openzeppelin", "-o", proofs)
    hashes = json.loads(proofs.read_text())["leaf_hashes"]
    given = [option for node in hashes for option in ("--leaf-hash", node)]
    assert {node[2:] for node in hashes} == {tree.leaf_hash(k).hex() for k in (3, 4, 50)}
    assert call("verify", proofs, "--root", tree.root.hex(), *given).return_value == 0


def test_bench_compares_one_device_with_all():
    args = ["merkle", "--devices", "cpu*2", "--leaves", "5000", "--runs", "1", "--json"]
    result = CliRunner().invoke(bench, args, catch_exceptions=False, standalone_mode=False)
    one, both = json.loads(result.stdout)["rows"]
    assert (one["n_devices"], both["n_devices"], one["speed_up"]) == (1, 2, 1.0)
    assert both["efficiency"] == both["speed_up"] / 2
    assert 0 < both["amdahl"] <= 2
    assert {"utilisation_std", "total_s", "ratio_to_bound"} <= set(both)


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["root", "nothing"], 2, "cannot be read"),
        (["root", "FILE", "--scheme", "md5"], 2, "unknown tree 'md5'"),
        (["root", "FILE", "--width", "33"], 1, "ends within a record"),
        (["root", "FILE", "--depth", "3"], 2, "no fixed depth"),
        (["root", "FILE", "--types", "address"], 2, "--types belongs"),
        (["root", "FILE", "--lines", "--hex"], 2, "exclude each other"),
        (["root", "FILE", "--hex"], 2, "line 1"),
        (["root", "FILE", "--hex", "--devices", "cpu"], 2, "maps a binary file"),
        (["root", "FILE", "--scheme", "openzeppelin", "--types", "address"], 2, "no JSON list"),
        (["prove", "FILE"], 2, "nothing to prove"),
        (["prove", "FILE", "100"], 2, "no leaf 100"),
        (["prove", "FILE", "1", "--grown-from", "101"], 2, "101"),
        (["prove", "FILE", "1", "--grown-from", "1", "--scheme", "openzeppelin"], 2, "no consistency"),
        (["prove", "FILE", "1", "-o", "no/where"], 2, "-o"),
        (["verify", "nothing", "--root", "00" * 32], 2, "cannot read"),
        (["verify", "FILE", "--root", "00" * 31], 2, "31 bytes"),
        (["verify", "FILE", "--root", "zz" * 32], 2, "not hexadecimal"),
    ],
)
def test_what_is_refused(file, refused, args, code, said):
    args = [file if arg == "FILE" else arg for arg in args]
    got, text = refused(*args)
    assert got == code
    assert "error:" in text
    assert said in text


def test_a_damaged_proof_is_refused_with_a_reason(tmp_path, refused):
    (tmp_path / "p").write_text('{"format": "evenload-merkle-1", "kind": "inclusion"}')
    code, text = refused("verify", tmp_path / "p", "--root", "00" * 32, "--leaf", "00")
    assert code == 1
    assert "missing" in text
