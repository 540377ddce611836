"""Shares of a global batch: exact, within memory, and proved."""

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload import certificate
from evenload.errors import ConfigError
from evenload.training import Cost, share


def best_by_brute_force(units, unit, costs, most, least):
    """The least seconds of all divisions, tried one by one."""
    ranges = [range(least, units + 1) if one is None else range(least, one // unit + 1) for one in most]
    tried = (one for one in itertools.product(*ranges) if sum(one) == units)
    return min(
        (
            max((a + b * n * unit) if n else 0.0 for n, (a, b) in zip(one, costs, strict=True))
            for one in tried
        ),
        default=math.inf,
    )


cost = st.tuples(st.floats(0, 3), st.floats(0.001, 3))


@given(
    st.integers(1, 12),
    st.integers(1, 3),
    st.lists(st.tuples(cost, st.none() | st.integers(1, 20)), min_size=1, max_size=3),
    st.integers(0, 1),
)
def test_no_whole_numbers_end_sooner(units, unit, ranks, least):
    costs, most = [one for one, _ in ranks], [one for _, one in ranks]
    best = best_by_brute_force(units, unit, costs, most, least)
    if math.isinf(best):
        with pytest.raises(ConfigError):
            share(units * unit, costs, most=most, unit=unit, least=least)
        return
    found = share(units * unit, costs, most=most, unit=unit, least=least)
    assert sum(found.counts) == units * unit
    assert all(n % unit == 0 and n >= least * unit for n in found.counts)
    assert all(limit is None or n <= limit for n, limit in zip(found.counts, most, strict=True))
    assert found.step_s == max(found.seconds)
    assert found.step_s <= best * (1 + 1e-12)
    assert found.bound_s <= found.step_s
    assert found.ratio >= 1


@given(st.integers(4, 300), st.lists(cost, min_size=1, max_size=4), st.integers(0, 1))
def test_a_stranger_believes_the_certificate(batch, costs, least):
    found = share(batch, costs, least=least)
    page = found.certificate()
    achieved, bound = certificate.check(certificate.parse(json.dumps(page).encode()))
    assert float(achieved) / 1e9 == pytest.approx(found.step_s, rel=1e-5, abs=1e-5)
    assert float(bound) / 1e9 <= found.bound_s * (1 + 1e-6) + 1e-6


def test_what_equal_batches_lose():
    found = share(256, [0.001, 0.004])
    assert found.counts == (205, 51)
    assert found.bound_s == pytest.approx(0.2048)
    assert found.equal_step_s == pytest.approx(0.512)
    assert share(256, [Cost(0.0, 0.001), (0.0, 0.004)]) == found
    assert share(12, [(0.5, 1.0), (0.0, 1.0)], unit=4).counts == (4, 8)


@pytest.mark.parametrize(
    ("given_", "options", "says"),
    [
        ((3, [1.0] * 4), {}, "use a global batch from 4"),
        ((64, [1.0, 1.0]), {"most": [24, 12]}, "use a global batch from 2 to 36"),
        ((64, [1.0, 1.0]), {"most": [24, 12], "unit": 8}, "use a global batch from 16 to 32 in steps of 8"),
        ((30, [1.0, 1.0]), {"unit": 8}, "in steps of 8"),
        ((32, [1.0, 1.0]), {"unit": 8, "most": [4, None]}, "rank 0 has too little memory for 1 x 8"),
        ((4, []), {}, "no ranks"),
        ((4, [0.0]), {}, "cost of rank 0 is 0.0"),
        ((4, [1.0, math.nan]), {}, "cost of rank 1"),
        ((4, [1e-300]), {}, "seconds for a sample"),
        ((4, [(1, 2, 3)]), {}, "fixed_s, per_sample_s"),
        ((4, "ab"), {}, "seconds"),
        ((4, [1.0, 1.0]), {"most": [1]}, "1 limits for 2 ranks"),
        ((4.5, [1.0]), {}, "global_batch"),
        ((4, [1.0]), {"unit": 0}, "unit"),
    ],
)
def test_what_is_impossible_is_refused_with_what_would_fit(given_, options, says):
    with pytest.raises(ConfigError, match=says):
        share(*given_, **options)


def test_a_certificate_of_very_many_samples_is_refused():
    with pytest.raises(ConfigError, match="larger unit"):
        share(2**20, [1e-3, 2e-3]).certificate()
    assert share(2**20, [1e-3, 2e-3], unit=2**12).certificate()["kind"] == "plan"
