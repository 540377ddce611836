"""The choice before anything is measured: by sizes alone, and never for more than serial training costs."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.clients.tune.expected_cost import (
    SHARE,
    Expectation,
    WorkSize,
    check_s,
    expect,
    fused_step_s,
    serial_step_s,
)
from evenload.clients.tune.step_work import StepWork
from evenload.clients.values.strategy import Strategy

TINY = StepWork(n_ops=33, flops=3.2e5, elements=21_697)
steps = st.builds(
    StepWork, n_ops=st.integers(1, 5000), flops=st.floats(0, 1e10), elements=st.integers(0, 10**8)
)
sizes = st.builds(
    WorkSize,
    step=st.none() | steps,
    n_clients=st.integers(1, 300),
    n_steps=st.integers(1, 10_000),
    rounds=st.integers(1, 1000),
    n_short=st.integers(0, 32),
    start_s=st.sampled_from([0.0, 1.0]),
    is_even=st.booleans(),
    is_fusable=st.booleans(),
    is_shared=st.booleans(),
)


@given(sizes)
def test_fusing_is_expected_only_where_it_saves_its_checks_and_a_fifth_of_serial(work):
    found = expect(work)
    if not found.strategy.is_fused:
        assert found.strategy == Strategy()
        return
    assert work.is_fusable
    n = work.n_steps * work.rounds
    serial_s = n * serial_step_s(work.step)
    fused_s = n * fused_step_s(work.step, found.strategy.chunk) + check_s(work)
    assert fused_s <= 0.8 * serial_s
    assert 2 <= found.strategy.chunk <= work.n_clients
    assert n * SHARE >= 1


@given(sizes, st.integers(2, 10))
def test_more_rounds_neither_undo_fusing_nor_measuring(work, times):
    """What pays for a few rounds pays for more of them."""
    now, later = expect(work), expect(dataclasses.replace(work, rounds=work.rounds * times))
    assert later.strategy.is_fused or not now.strategy.is_fused
    if now.strategy == later.strategy:
        assert later.pays_measuring or not now.pays_measuring


def test_loading_the_compiler_is_waited_for_only_where_the_job_repays_it():
    short, long = (expect(WorkSize(TINY, 100, 1000, rounds=rounds, start_s=1.0)) for rounds in (5, 100))
    assert (short.strategy.is_fused, long.strategy.is_fused) == (False, True)


@pytest.mark.parametrize(
    ("n_ops", "chunk", "step_s", "least", "most"),
    [
        (39, 20, 8.2e-4, 0.6, 0.9),  # 20 tiny clients, a step of all: 0.82 ms eagerly, 0.18 ms compiled
        (39, 100, 1.4e-3, 0.4, 0.7),  # 100 of them: 1.4 ms, 0.7 ms
        (176, 5, 2.05e-2, 0.1, 0.4),  # a transformer's layer of width 64: 20.5 ms, 16.3 ms
    ],
)
def test_compiling_is_expected_to_save_about_what_it_was_measured_to_save(n_ops, chunk, step_s, least, most):
    gain = Expectation(Strategy(), "", n_ops=n_ops).compiling(chunk, step_s / chunk)
    assert least <= gain <= most


ADAPTED = {  # tokens, rank -> a step of one adapter of a Llama of width 128, batches of 4 texts
    (32, 4): StepWork(496, 1.749e8, 6_280_000),
    (32, 64): StepWork(496, 2.181e8, 6_910_000),
    (256, 4): StepWork(496, 1.3988e9, 45_450_000),
    (256, 64): StepWork(496, 1.7448e9, 47_580_000),
}


@pytest.mark.parametrize(
    ("tokens", "rank", "n", "is_fused"),
    [
        *((32, rank, n, n == 32) for rank in (4, 64) for n in (2, 32)),
        *((256, rank, n, False) for rank in (4, 64) for n in (2, 8, 32)),
    ],
)
def test_adapters_are_fused_where_texts_are_short_and_adapters_many(tokens, rank, n, is_fused):
    """As they were measured; where fusing gains less than a fifth, they are measured or left alone."""
    found = expect(WorkSize(ADAPTED[tokens, rank], n, 50 * n, rounds=1, is_shared=True))
    assert found.strategy.is_fused == is_fused
    assert is_fused or "not expected to save a fifth" in found.why
