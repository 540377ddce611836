"""``evenload fullprove``, as a user types it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from node_calls import Node, has

from evenload.cli import cli

pytest.importorskip("llvmlite", reason="the extra kernels is not installed")
pytest.importorskip("wasmtime", reason="the extra zk is not installed")

DATA = Path(__file__).parents[1] / "data" / "zk" / "public8"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EVENLOAD_KERNEL_CACHE", str(tmp_path / "cache"))


def run(*arguments):
    return CliRunner().invoke(cli, [str(a) for a in arguments], standalone_mode=False)


@pytest.fixture
def circuit(tmp_path):
    if not has("circom2"):
        pytest.skip("no circom, so witnesses of its circuits are not calculated")
    with Node() as node:
        node("circom", str(DATA / "public8.circom"), "--wasm", "-o", str(tmp_path))
    return tmp_path / "public8_js" / "public8.wasm"


def test_from_inputs_to_a_verified_proof(circuit, tmp_path):
    out, inputs, key = tmp_path / "proofs", DATA / "public8.input.json", DATA / "circuit.zkey"
    done = run("zk", "fullprove", circuit, inputs, key, "-o", out, "--witness", tmp_path / "w.wtns")
    assert (done.exception, done.return_value) == (None, 0)
    assert done.stdout == f"{out / 'public8.input.proof.json'}\n"
    assert (tmp_path / "w.wtns").read_bytes() == (DATA / "witness.wtns").read_bytes()
    assert (out / "public8.input.public.json").read_bytes() == (DATA / "public.json").read_bytes()
    files = (out / "public8.input.public.json", out / "public8.input.proof.json")
    assert run("zk", "verify", DATA / "vkey.json", *files).return_value == 0

    wrong = tmp_path / "wrong.json"
    for text, why in (('{"a": ["1"]}', "signal 'a' takes 8 values, 1 were given"), ("[", "not JSON")):
        wrong.write_text(text)
        failed = run("zk", "fullprove", circuit, wrong, key, "-o", out, "--json")
        page = json.loads(failed.stdout)
        assert (failed.return_value, page["schema"], page["proof"]) == (1, 1, None)
        assert why in page["error"]
    other = run("zk", "fullprove", circuit, inputs, DATA.parent / "multiplier" / "circuit.zkey", "-o", out)
    assert other.return_value == 1
    assert "multiplier/circuit.zkey needs 4" in other.stderr
    assert not list(out.glob("wrong*"))


@pytest.mark.parametrize("missing", ["none.wasm", "none.json", "none.zkey"])
def test_files_that_are_not_there_are_named(tmp_path, missing):
    files = {
        ".wasm": tmp_path / "c.wasm",
        ".json": DATA / "public8.input.json",
        ".zkey": DATA / "circuit.zkey",
    }
    files[".wasm"].write_bytes(b"")
    files[Path(missing).suffix] = tmp_path / missing
    done = run("zk", "fullprove", *files.values(), "-o", tmp_path / "proofs")
    assert (done.exception, done.return_value) == (None, 1)
    assert missing in done.stderr
    assert not list((tmp_path / "proofs").iterdir())
