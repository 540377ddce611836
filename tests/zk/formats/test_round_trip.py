"""What snarkjs and circom wrote is read, and written back byte for byte."""

import io
from pathlib import Path

import numpy as np
import pytest
from reference.plain_prover import first_unsatisfied

from evenload.errors import FormatError
from evenload.gpu.llvm import rows
from evenload.zk import read_witness, read_zkey, write_witness, write_zkey
from evenload.zk.circuits import CircuitBuilder
from evenload.zk.formats.r1cs import read_r1cs, write_r1cs
from evenload.zk.formats.witness import witness_from_integers

DATA = Path(__file__).parents[2] / "data" / "zk"
FOLDERS = sorted(path.parent for path in DATA.glob("*/circuit.zkey"))


@pytest.fixture(params=FOLDERS, ids=lambda path: path.name)
def folder(request):
    return request.param


def written(write, value):
    target = io.BytesIO()
    write(target, value)
    return target.getvalue()


def test_keys_and_witnesses(folder):
    key, witness = folder / "circuit.zkey", folder / "witness.wtns"
    assert written(write_zkey, read_zkey(key)) == key.read_bytes()
    assert written(write_witness, read_witness(witness)) == witness.read_bytes()


def test_r1cs_and_that_the_witness_satisfies_it(folder):
    circuit = read_r1cs(folder / f"{folder.name}.r1cs")
    again = read_r1cs(written(write_r1cs, circuit))
    assert (again.terms == circuit.terms).all()
    assert again.n_public == circuit.n_public
    witness = rows.to_integers(read_witness(folder / "witness.wtns"))
    assert first_unsatisfied(circuit, witness) is None
    wrong = list(witness)
    wrong[-1] += 1
    assert first_unsatisfied(circuit, wrong) is not None


def test_paths_and_open_files(tmp_path):
    path = tmp_path / "file"
    for write, read, name in (
        (write_witness, read_witness, "witness.wtns"),
        (write_zkey, read_zkey, "circuit.zkey"),
        (write_r1cs, read_r1cs, "boundary64.r1cs"),
    ):
        value = read(DATA / "boundary64" / name)
        for target in (path, str(path)):
            write(target, value)
            with path.open("rb") as file:
                assert written(write, read(file)) == written(write, value)
            assert written(write, read(target)) == written(write, value)


def test_empty_linear_combinations_survive():
    circuit = CircuitBuilder()
    bit = circuit.private_input("bit")
    circuit.bits(bit, 1)
    r1cs = circuit.r1cs()
    assert (read_r1cs(written(write_r1cs, r1cs)).terms == r1cs.terms).all()


def test_writers_refuse_what_readers_would(folder):
    key = read_zkey(folder / "circuit.zkey")
    key.sections["A"] = key.sections["A"][:-1]
    with pytest.raises(FormatError, match="section A"):
        write_zkey(io.BytesIO(), key)
    with pytest.raises(FormatError, match="constant wire"):
        witness_from_integers([])
    assert witness_from_integers([1, 5]).dtype == np.uint64
