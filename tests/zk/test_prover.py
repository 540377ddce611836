"""Proving: every circuit, both levels, verified by the oracle; and what happens when something is wrong."""

import threading

import numpy as np
import pytest
from reference import plain_prover as oracle

from evenload.errors import ConfigError, FormatError, NoUsableDevice
from evenload.gpu.field import FR
from evenload.zk import Prover, ProveRequest, key, read_witness, read_zkey, worker
from evenload.zk.circuits import squaring_chain
from evenload.zk.cpu import msm
from evenload.zk.devsetup import dev_setup
from evenload.zk.groth16 import public_from_json
from evenload.zk.prover import InvalidProof

R = FR.modulus
pytest.importorskip("llvmlite", reason="the extra kernels is not installed")


@pytest.fixture(scope="module")
def chain():
    """A circuit of 300 squarings with its key."""
    circuit, witness = squaring_chain(300)
    return dev_setup(circuit, seed="chain"), witness


def test_snarkjs_keys_prove(circuit):
    with Prover(circuit / "circuit.zkey") as ours:
        done = ours.prove(circuit / "witness.wtns")
    assert list(done.public) == public_from_json((circuit / "public.json").read_text())
    assert oracle.verify(ours.verification_key, done.public, done.proof)
    assert (ours.stats.n_proved, ours.stats.n_redone) == (1, 0)
    assert "msm H" in done.stages


def test_both_levels_and_the_oracle_make_the_same_proof(circuit, level, oracle_proof):
    """With the same blinding, which only a test can force."""
    values = read_witness(circuit / "witness.wtns")
    zkey = read_zkey(circuit / "circuit.zkey")
    loaded = key.CpuKey.load(zkey, level)
    values = worker.load_witness(values, loaded.n_vars, "test")
    fast = worker.prove_unverified(loaded, values, map, threading.local(), worker.StageTimer())
    assert fast == oracle_proof


def test_blinding_is_fresh(multiplier):
    with Prover(multiplier / "circuit.zkey") as ours:
        proofs = {ours.prove(multiplier / "witness.wtns").proof for _ in range(3)}
    assert len(proofs) == 3


def test_witness_as_bytes_array_and_integers(multiplier):
    content = (multiplier / "witness.wtns").read_bytes()
    with Prover((multiplier / "circuit.zkey").read_bytes(), threads=2) as ours:
        for witness in (content, read_witness(content), [1, 33, 3, 11]):
            assert ours.prove(witness, public=[33]).public == (33,)


def test_an_unsatisfying_witness_gives_an_error_and_no_proof(chain):
    zkey, witness = chain
    wrong = list(witness)
    wrong[50] = (wrong[50] + 1) % R
    with Prover(zkey) as ours:
        with pytest.raises(InvalidProof, match="pairing equation") as caught:
            ours.prove(wrong)
        assert "satisfies" in caught.value.hint
        assert (ours.stats.n_failed, ours.stats.n_redone, ours.stats.n_proved) == (1, 1, 0)
        assert ours.prove(witness).public == (witness[1],)


def test_a_kernel_that_errs_is_caught_and_the_reference_path_helps(chain, monkeypatch):
    zkey, witness = chain
    with Prover(zkey) as ours:
        right, calls = msm.multiply, []

        def wrong_once(bases, scalars, *rest, **options):
            calls.append(bases)
            result = right(bases, scalars, *rest, **options)
            return right(ours.key.bases["A"], scalars[:, ::-1] & 1) if len(calls) == 1 else result

        monkeypatch.setattr(msm, "multiply", wrong_once)
        done = ours.prove(witness)
    assert ours.stats.n_redone == 1
    assert oracle.verify(ours.verification_key, done.public, done.proof)


@pytest.mark.parametrize(
    ("witness", "error", "words"),
    [
        ([1, 33, 3], ConfigError, "3 values"),
        ([1, 33, 3, 11, 0], ConfigError, "5 values"),
        ([2, 33, 3, 11], FormatError, "value 0 is not 1"),
        ([1, 33, 3, R], FormatError, "value 3"),
        ([1, 33, 3, -1], FormatError, "value 3"),
        ([], FormatError, "constant wire"),
        (np.zeros((4, 3), np.uint64), ConfigError, r"\[n, 4\] uint64"),
    ],
)
def test_bad_witnesses_are_refused(multiplier, witness, error, words):
    with Prover(multiplier / "circuit.zkey") as ours, pytest.raises(error, match=words):
        ours.prove(witness)


def test_expected_public_inputs_are_compared(multiplier):
    with Prover(multiplier / "circuit.zkey") as ours:
        for expected in ([34], [], [33, 1]):
            with pytest.raises(ConfigError, match="expected public inputs"):
                ours.prove(multiplier / "witness.wtns", public=expected)


def test_a_key_that_changed_on_disk_is_not_used_as_reference(multiplier, tmp_path):
    path = tmp_path / "key.zkey"
    path.write_bytes((multiplier / "circuit.zkey").read_bytes())
    with Prover(path) as ours:
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        with pytest.raises(ConfigError, match="another file"):
            ours.prove([1, 34, 3, 11])


def test_options(multiplier):
    with pytest.raises(NoUsableDevice):
        Prover(multiplier / "circuit.zkey", devices="cuda:0")
    with pytest.raises(ConfigError, match="threads"):
        Prover(multiplier / "circuit.zkey", threads=0)


def test_batch_keeps_order_and_separates_failures(chain):
    zkey, witness = chain
    wrong = [*witness[:-1], 5]
    requests = [witness, ProveRequest(wrong), ProveRequest(witness, public=[witness[1]]), [1, 2], witness]
    with Prover(zkey) as ours:
        results = ours.prove_batch_parallel(requests, num_workers=2)
    kinds = [type(result).__name__ for result in results]
    assert kinds == ["ProvedStatement", "InvalidProof", "ProvedStatement", "ConfigError", "ProvedStatement"]
    for k in (0, 2, 4):
        assert oracle.verify(ours.verification_key, results[k].public, results[k].proof)


def test_workers_share_the_key_and_have_their_own_counts(chain):
    zkey, witness = chain
    with Prover(zkey) as ours:
        a, b = ours.spawn_worker(), ours.spawn_worker()
        a.prove(witness)
        assert a.key is b.key is ours.key
        assert (a.stats.n_proved, b.stats.n_proved, ours.stats.n_proved) == (1, 0, 0)
