"""The privacy that a private run gives: epsilon by Google's ``dp-accounting``, for Poisson-sampled cohorts.

A client's whole data set is protected (user level), against whoever sees every global model. Counted with
privacy loss distributions, which are tight (Koskela et al., AISTATS 2020, arXiv:1906.03049); neighbouring
federations differ in one client more or less. That holds for cohorts to which every client belongs
independently with the same probability: ``Cohort(size=0.1, poisson=True)``.
"""

from typing import Any

from evenload._optional import require
from evenload.errors import ConfigError

WHY = "accounting for privacy"
MOST_NOISE = 1e4
# Grids of privacy losses; losses are rounded up, so a coarse one errs to the safe side.
FINE, COARSE = 1e-4, 1e-3


def spent_epsilon(noise: float, rate: float, rounds: int, delta: float) -> float:
    """Epsilon after ``rounds`` rounds; infinite without noise.

    noise  standard deviation of the noise, in multiples of the clipping norm
    rate   probability with which a client takes part in a round
    delta  what epsilon may fail by; below 1 / number of clients
    Raises ConfigError for values out of range, MissingExtra without dp-accounting.
    """
    return _spent(noise, rate, rounds, delta, FINE)


def _spent(noise: float, rate: float, rounds: int, delta: float, grid: float) -> float:
    _check(rate, rounds, delta)
    if not noise >= 0:
        raise ConfigError(f"noise={noise} is not a number of 0 or more", hint="use 1.0, say")
    if noise == 0:
        return float("inf")
    accountant: Any = require("dp_accounting.pld", extra="clients", why=WHY).PLDAccountant(
        value_discretization_interval=grid
    )
    accountant.compose(_event(noise, rate), rounds)
    return float(accountant.get_epsilon(delta))


def noise_for(epsilon: float, rate: float, rounds: int, delta: float) -> float:
    """The least noise, to 1 %, with which ``rounds`` spend at most ``epsilon``; in clipping norms.

    Raises ConfigError for values out of range, or if no noise below 10,000 is enough.
    """
    _check(rate, rounds, delta)
    if not epsilon > 0:
        raise ConfigError(f"epsilon={epsilon} would need endless noise", hint="use 1.0 to 10.0")
    low = high = 1.0
    while _spent(high, rate, rounds, delta, COARSE) > epsilon:
        low, high = high, 2 * high
        if high > MOST_NOISE:
            raise ConfigError(f"no noise below {MOST_NOISE:g} gives epsilon={epsilon}")
    while low == high or (low > 1 / MOST_NOISE and _spent(low, rate, rounds, delta, COARSE) <= epsilon):
        low, high = low / 2, low
    while high > 1.01 * low:
        middle = (low * high) ** 0.5
        low, high = (
            (low, middle) if _spent(middle, rate, rounds, delta, COARSE) <= epsilon else (middle, high)
        )
    return high


def _check(rate: float, rounds: int, delta: float) -> None:
    if not 0 < rate <= 1 or not 0 < delta < 1 or rounds < 1:
        raise ConfigError(
            f"rate={rate}, rounds={rounds}, delta={delta}",
            hint="use a rate in (0, 1], one round or more, and a delta in (0, 1) such as 1e-5",
        )


def _event(noise: float, rate: float) -> Any:
    dp: Any = require("dp_accounting", extra="clients", why=WHY)
    return dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise))
