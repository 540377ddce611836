"""Proving with WGSL kernels: each step against its twin, whole proofs of every circuit, and faults."""

import random
import threading

import numpy as np
import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.errors import ConfigError, FormatError, UnknownName
from evenload.gpu.field import FR

pytest.importorskip("llvmlite", reason="the extra kernels is not installed")

from reference import plain_prover as oracle

from evenload.gpu.llvm import rows
from evenload.gpu.wgsl.sums import MAX_RUN
from evenload.zk import Prover, read_witness, read_zkey, worker
from evenload.zk.bn254.plain_curve import point_of
from evenload.zk.circuits import squaring_chain
from evenload.zk.cpu import msm
from evenload.zk.devsetup import dev_setup
from evenload.zk.prover import InvalidProof
from evenload.zk.wgsl.key import WgslDomain, WgslKey
from evenload.zk.wgsl.sums import WgslBases, plan_runs
from evenload.zk.wgsl_device import WgslDevice

R = FR.modulus
# Compiling both groups without 64-bit integers takes a software driver half a minute.
VARIANTS = ["u64", pytest.param("limb13", marks=pytest.mark.slow)]


@pytest.fixture(params=VARIANTS)
def device(request, context):
    if request.param == "u64" and not context.has_int64:
        pytest.skip(f"{context.name} has no 64-bit integers")
    return WgslDevice(variant=request.param, context=context)


# --- transforms -----------------------------------------------------------------------------------
@pytest.mark.parametrize("variant", ["u64", "limb13"])
@pytest.mark.parametrize(("log_size", "piece"), [(1, None), (2, None), (6, None), (9, None), (5, 8), (7, 16)])
def test_the_quotient_against_the_oracle(context, variant, log_size, piece):
    """In one piece, and cut into several buffers as a domain is that does not fit a binding."""
    if variant == "u64" and not context.has_int64:
        pytest.skip(f"{context.name} has no 64-bit integers")
    dice, n = random.Random(log_size), 1 << log_size
    values = [[dice.choice([0, 1, R - 1, dice.randrange(R)]) for _ in range(n)] for _ in range(2)]
    a, b, c = map(oracle.to_odd_coset, (*values, [x * y % R for x, y in zip(*values, strict=True)]))
    given = [rows.from_integers([FR.montgomery(v) for v in column]) for column in values]
    domain = WgslDomain(WgslDevice(variant=variant, context=context), n, piece)
    assert rows.to_integers(domain.quotient(*given)) == [
        (x * y - z) % R for x, y, z in zip(a, b, c, strict=True)
    ]


# --- sums -----------------------------------------------------------------------------------------
@settings(deadline=None, max_examples=examples(50))
@given(st.lists(st.one_of(st.integers(0, 5), st.integers(0, 300), st.just(20_000)), min_size=1, max_size=40))
def test_runs_are_short_and_add_up_every_entry_once(counts):
    start = np.concatenate([[0], np.cumsum(counts)])
    runs = plan_runs(start)
    held = {}
    for level, table in enumerate(runs.levels):
        assert (table[:, 1] <= MAX_RUN).all()
        assert (table[:, 1] >= 1).all()
        assert (np.diff(table[:, 1].astype(int)) <= 0).all()
        before = dict(held)
        for first, count, slot in table.tolist():
            assert slot not in held
            entries = range(first, first + count)
            held[slot] = [e for k in entries for e in (before.pop(k) if level else [k])]
    for bucket, count in enumerate(counts):
        assert sorted(held.get(bucket, [])) == list(range(start[bucket], start[bucket] + count))
    assert runs.n_slots >= len(counts)
    assert max(held, default=0) < runs.n_slots


@pytest.fixture
def bases_of(draw):
    """``bases_of(degree, n, scalars)``: checked bases, scalars, and what their sum of multiples is."""

    def bases_of(degree, n, scalars=None):
        given, scalars, expected = draw(degree, n, n, scalars)
        return msm.Bases.load(given, degree, "word64"), rows.from_integers(scalars), expected

    return bases_of


@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize("n", [1, 2, 300])
def test_equal_opposite_and_infinite_points(device, bases_of, degree, n):
    bases, scalars, expected = bases_of(degree, n)
    ours = WgslBases(device, bases)
    for width in (None, 4, 7):
        assert point_of(ours.multiply(scalars, width)) == expected


def test_one_hot_bucket_takes_several_levels(gpu, bases_of):
    """All scalars are one, as in a witness of bits: more than MAX_RUN^2 points in one bucket."""
    n = MAX_RUN**2 + 100
    bases, scalars, expected = bases_of(1, n, [1] * n)
    assert len(plan_runs(np.array([0, n])).levels) == 3
    assert point_of(WgslBases(gpu, bases).multiply(scalars)) == expected


def test_nothing_to_add(gpu, bases_of):
    nothing = WgslBases(gpu, msm.Bases.load(np.zeros((3, 8), np.uint64), 1, "word64"))
    assert not nothing.multiply(rows.from_integers([1, 2, 3])).any()
    bases, scalars, _ = bases_of(1, 5)
    assert not WgslBases(gpu, bases).multiply(np.zeros_like(scalars)).any()


def test_points_and_sums_that_do_not_fit_one_binding(gpu, bases_of, monkeypatch):
    """Sections are cut, and windows are taken a few at a time."""
    bases, scalars, expected = bases_of(1, 300)
    limits = {**gpu.context.limits, "max-storage-buffer-binding-size": 8192}
    monkeypatch.setattr(gpu.context, "limits", limits)
    ours = WgslBases(gpu, bases)
    assert len(ours.parts) > 1
    assert point_of(ours.multiply(scalars, width=4)) == expected


# --- whole proofs ---------------------------------------------------------------------------------
def test_the_oracle_makes_the_same_proof(circuit, gpu, oracle_proof):
    """With the same blinding, which only a test can force."""
    values, zkey = read_witness(circuit / "witness.wtns"), read_zkey(circuit / "circuit.zkey")
    key = WgslKey.load(zkey, gpu)
    values = worker.load_witness(values, key.n_vars, "test")
    made = worker.prove_unverified(key, values, map, threading.local(), worker.StageTimer())
    assert made == oracle_proof


@pytest.fixture(scope="module")
def chain():
    circuit, witness = squaring_chain(100)
    return dev_setup(circuit, seed="chain"), witness


def test_a_device_that_is_lost_is_opened_again_with_what_was_on_it(context, bases_of):
    """Points and tables; other tests prove with them."""
    device, n = WgslDevice(), 1 << 6
    domain, (bases, scalars, expected) = WgslDomain(device, n), bases_of(1, 20)
    ours, values = WgslBases(device, bases), rows.from_integers(range(n))
    before = domain.quotient(values, values)
    assert point_of(ours.multiply(scalars)) == expected
    device.context.device.destroy()
    assert point_of(ours.multiply(scalars)) == expected
    device.context.device.destroy()
    assert (domain.quotient(values, values) == before).all()
    assert device.context.n_losses == 2
    device.close()


def test_a_device_that_computes_wrongly_gives_no_proof_away(chain, gpu, monkeypatch):
    """What it returns is verified, made again on the CPU, and counted."""
    zkey, witness = chain
    with Prover(zkey, gpu) as prover:
        right = WgslBases.multiply
        monkeypatch.setattr(WgslBases, "multiply", lambda self, s, w=None: right(self, s ^ np.uint64(1), w))
        done = prover.prove(witness)
        assert prover.stats.n_redone == 1
        assert oracle.verify(prover.verification_key, done.public, done.proof)
        wrong = [*witness[:-1], 5]
        with pytest.raises(InvalidProof):
            prover.prove(wrong)
        assert (prover.stats.n_proved, prover.stats.n_failed) == (1, 1)


def test_workers_share_one_device(chain, gpu):
    zkey, witness = chain
    with Prover(zkey, gpu) as prover:
        results = prover.prove_batch_parallel([witness] * 3, num_workers=2)
    assert all(oracle.verify(prover.verification_key, done.public, done.proof) for done in results)


def test_keys_are_checked_before_they_reach_the_device(public8, gpu):
    zkey = read_zkey(public8 / "circuit.zkey")
    zkey.sections["H"][3, 0] ^= np.uint64(1)
    with pytest.raises(FormatError, match=r"section 9 \(H points\) at byte \d+: point 3 is not on the curve"):
        Prover(zkey, gpu)


def test_levels_and_backends_are_names(public8):
    for options in ({"level": "avx3"}, {"backend": "cuda"}):
        with pytest.raises(UnknownName):
            Prover(public8 / "circuit.zkey", **options)
    with pytest.raises(ConfigError, match="does not run backend"):
        Prover(public8 / "circuit.zkey", "cpu*1", backend="wgsl")
    for level, options in (("u64", {}), ("word64", {"backend": "wgsl"}), ("u64", {"devices": "cpu*2"})):
        with pytest.raises(ConfigError, match="do not run"):
            Prover(public8 / "circuit.zkey", level=level, **options)


@pytest.mark.slow
@pytest.mark.parametrize("log_size", [14, 16])
def test_large_proofs(context, log_size):
    circuit, witness = squaring_chain((1 << log_size) - 10)
    with Prover(dev_setup(circuit, seed="large"), backend="wgsl") as prover:
        done = prover.prove(witness)
        assert prover.stats.n_redone == 0
    assert oracle.verify(prover.verification_key, done.public, done.proof)
