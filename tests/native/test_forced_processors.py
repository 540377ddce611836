"""Kernels of every level give the same bits; a level is chosen by what the processor is said to be."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from evenload.native import machine

pytest.importorskip("numba", reason="the extra kernels is not installed")
DATA = Path(__file__).parents[1] / "data/zk/multiplier"
FORCED = ["x86-64-v3", "x86-64-v3+sha", "x86-64-v4", "x86-64-v4+sha", "x86-64-v4+avx512ifma", "armv8-a"]
FASTEST = {"x86-64-v3": "fma52x4", "x86-64-v4": "fma52x8", "armv8-a": "word64"}
ASK = """if True:
    import hashlib, json, pathlib, secrets, sys
    import numpy as np
    from evenload.balance.flow import route
    from evenload.gpu.llvm import programs
    from evenload.merkle import MerkleTree, StandardTree
    from evenload.moe import Fleet, place
    from evenload.native import machine, objects
    from evenload.zk import Prover

    dice = np.random.default_rng(0)
    folder = pathlib.Path(sys.argv[1])
    blinding = iter([123456789, 987654321])
    secrets.randbelow = lambda _: next(blinding)  # so that the proof is the same each time
    with Prover(folder / "circuit.zkey", threads=1) as prover:
        proof = prover.prove(folder / "witness.wtns").proof
    leaves = dice.integers(0, 256, (301, 32), dtype=np.uint8)
    leaves[:, 31] = 0  # an element of the field, for Poseidon
    trees = {name: MerkleTree(leaves, scheme=name, threads=1).root.hex()
             for name in ("rfc6962", "bitcoin", "poseidon", "rfc6962-blake2s")}
    trees["openzeppelin"] = StandardTree(leaves).root.hex()
    loads = dice.integers(1, 100, (3, 2, 32)).astype(float)
    flows = [route(np.arange(40) % 32, np.arange(32) ** 2, 8, **options).quotas.tolist()
             for options in ({}, {"speeds": range(1, 9)}, {"even": True})]
    answers = {"flows": flows, "place": place(loads, Fleet((5,) * 8)).phy2log.tolist(),
               "proof": repr(proof), "trees": trees}
    print(json.dumps({"answers": answers, "level": programs.best_level(),
                      "has_sha": "sha" in machine.host_features(),
                      "how": sorted({origin.how for origin in objects.origins})}))
"""


def ask(forced: str | None, python: str = sys.executable) -> dict:
    environment = {name: text for name, text in os.environ.items() if name != "EVENLOAD_PROCESSOR"}
    environment |= {"EVENLOAD_PROCESSOR": forced} if forced else {}
    command = [python, "-c", ASK, str(DATA)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def usual() -> dict:
    return ask(None)


@pytest.mark.skipif(not machine.baselines_here(), reason="no baseline of this kind of processor")
@pytest.mark.parametrize("forced", FORCED)
def test_answers_are_equal_bit_by_bit_on_every_processor(forced: str, usual: dict) -> None:
    baseline, *more = forced.split("+")
    if baseline not in machine.baselines_here() or not {*more} <= machine.host_features():
        pytest.skip(f"this processor is no {forced}")
    found = ask(forced)
    assert found["answers"] == usual["answers"]
    assert (found["level"], found["has_sha"]) == (
        "ifma52" if "avx512ifma" in more else FASTEST[baseline],
        "sha" in more,
    )


OTHER_PYTHON = os.environ.get("EVENLOAD_OTHER_PYTHON")


@pytest.mark.skipif(not OTHER_PYTHON, reason="EVENLOAD_OTHER_PYTHON names no Python of another architecture")
def test_another_architecture_answers_alike_from_what_is_shipped(usual: dict, monkeypatch) -> None:
    """As scripts/arm64_python.sh makes one."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))
    found = ask(None, OTHER_PYTHON)
    assert (found["answers"], found["how"]) == (usual["answers"], ["shipped"])
