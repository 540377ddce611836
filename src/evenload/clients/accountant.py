"""The privacy that a private run gives: epsilon by Google's ``dp-accounting``, for Poisson-sampled cohorts.

A client's whole data set is protected (user level), against whoever sees every global model. Counted with
privacy loss distributions, which are tight (Koskela et al., AISTATS 2020, arXiv:1906.03049); neighbouring
federations differ in one client more or less. That holds for cohorts to which every client belongs
independently with the same probability: ``Cohort(size=0.1, poisson=True)``.
"""

import math
from functools import partial
from typing import Any

from evenload._optional import require
from evenload.errors import ConfigError

WHY = "accounting for privacy"
MOST_NOISE = 1e4
FINE, COARSE = 1e-4, 1e-3  # grids of privacy losses; rounded up, so a coarse one errs to the safe side


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
    spent = partial(_spent, rate=rate, rounds=rounds, delta=delta, grid=COARSE)
    low = high = 1.0
    above = below = spent(1.0)  # what low and high spend
    while below > epsilon:
        low, above, high = high, below, 2 * high
        if high > MOST_NOISE:
            raise ConfigError(f"no noise below {MOST_NOISE:g} gives epsilon={epsilon}")
        below = spent(high)
    while low == high or (low > 1 / MOST_NOISE and above <= epsilon):
        high, below, low = low, above, low / 2
        above = spent(low)
    while high > 1.01 * low:  # a line through both ends, in logarithms, comes close at once
        part = math.log(above / epsilon) / math.log(above / below) if 0 < below < above < math.inf else 0.5
        middle = min(max(low * (high / low) ** part, 1.005 * low), high / 1.005)
        if (found := spent(middle)) <= epsilon:
            high, below = middle, found
        else:
            low, above = middle, found
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
