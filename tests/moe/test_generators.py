import numpy as np
import pytest

from evenload.errors import ConfigError, UnknownName
from evenload.moe.generators import Popularity, generate

SIZE = {"n_windows": 16, "n_layers": 6, "n_experts": 128, "n_ids": 20_000}


@pytest.mark.parametrize(("spread", "drift"), [(0.7, 0.1), (0.7, 0.3), (1.0, 0.05), (0.3, 0.2)])
def test_logarithms_spread_and_drift_as_told(spread, drift):
    """Oracle: moments of the logarithms of counts so large that drawing them adds nothing."""
    counts = generate(Popularity(spread=spread, drift=drift), **(SIZE | {"n_ids": 10**8})).windows(1)
    logs = np.log(counts) - np.log(counts).mean(axis=2, keepdims=True)
    kept = 1 - np.var(np.diff(logs, axis=0)) / (2 * logs.var())
    assert logs.std() == pytest.approx(spread, rel=0.1)
    assert np.sqrt(1 - kept**2) == pytest.approx(drift, abs=0.03)


def test_zipf_falls_by_its_exponent():
    counts = generate(Popularity("zipf", spread=1.0, drift=0.0), **(SIZE | {"n_ids": 10**6})).windows(1)[0, 0]
    ranked = np.sort(counts)[::-1]
    assert ranked[0] / ranked[9] == pytest.approx(10, rel=0.05)


def test_domains_take_turns():
    trace = generate(Popularity(drift=0.0, shift=4), **SIZE).windows(1)
    alike = np.array([[np.corrcoef(a[0], b[0])[0, 1] for a in trace] for b in trace])
    assert alike[0, 3] > 0.95
    assert alike[0, 8] > 0.95
    assert alike[0, 4] < 0.3


def test_the_same_arguments_give_the_same_trace():
    a, b = (generate(Popularity(), seed=3, **SIZE).windows(1) for _ in range(2))
    assert (a == b).all()
    assert (a.sum(axis=2) == SIZE["n_ids"]).all()
    assert (a != generate(Popularity(), seed=4, **SIZE).windows(1)).any()


@pytest.mark.parametrize(
    "options", [{"spread": -1}, {"spread": float("nan")}, {"drift": 1.5}, {"shift": -1}, {"n_domains": 0}]
)
def test_bad_popularity_is_refused(options):
    with pytest.raises(ConfigError):
        Popularity(**options)


def test_bad_sizes_are_refused():
    with pytest.raises(UnknownName):
        Popularity("uniform")
    with pytest.raises(ConfigError):
        generate(Popularity(), **(SIZE | {"n_experts": 0}))
