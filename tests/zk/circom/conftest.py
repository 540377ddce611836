"""Circuits compiled by circom, as npm has it (scripts/setup.py puts it into ./node_modules)."""

from pathlib import Path

import pytest
from node_calls import has

DATA = Path(__file__).parents[2] / "data" / "zk"


@pytest.fixture(scope="module")
def compiled(node, tmp_path_factory):
    """``compiled(name)``: the WASM of a circuit of tests/data/zk."""
    if not has("circom2"):
        pytest.skip("no circom, so witnesses of its circuits are not calculated")
    pytest.importorskip("wasmtime", reason="the extra zk is not installed")
    folder, made = tmp_path_factory.mktemp("circom"), {}

    def compile_it(name):
        if name not in made:
            places = [DATA / place / f"{name}.circom" for place in (name, "circom")]
            source = next(place for place in places if place.exists())
            node("circom", str(source), "--wasm", "-o", str(folder))
            made[name] = folder / f"{name}_js" / f"{name}.wasm"
        return made[name]

    return compile_it
