"""Circuits compiled by circom, as npm has it (scripts/setup.py puts it into ./node_modules)."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DATA = ROOT / "tests" / "data" / "zk"
FAST_START = ["--liftoff-only"]  # optimising circom's own 9 MB of WASM takes longer than what it compiles
CIRCOM = ROOT / "node_modules" / "circom2" / "cli.js"


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
    """``compiled(name)``: the WASM of a circuit of tests/data/zk."""
    if not CIRCOM.exists() or not shutil.which("node"):
        pytest.skip("no circom, so witnesses of its circuits are not calculated")
    pytest.importorskip("wasmtime", reason="the circom extra is not installed")
    folder, made = tmp_path_factory.mktemp("circom"), {}

    def compile_it(name):
        if name not in made:
            places = [DATA / place / f"{name}.circom" for place in (name, "circom")]
            source = next(place for place in places if place.exists())
            command = ["node", *FAST_START, str(CIRCOM), str(source), "--wasm", "-o", str(folder)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=550)
            assert done.returncode == 0, done.stdout + done.stderr
            made[name] = folder / f"{name}_js" / f"{name}.wasm"
        return made[name]

    return compile_it
