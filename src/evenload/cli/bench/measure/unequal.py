"""Policies on devices of speeds 1 : 2 : 4 : 8, in the simulator that the real scheduler runs in, too."""

from statistics import fmean

from evenload.balance.fleet import ModelDevice, draw_costs
from evenload.balance.metrics import utilisation_deviation
from evenload.balance.migrate import LoadBalancer
from evenload.balance.simulate import simulate
from evenload.cli.bench.measure.trial_report import BenchOptions, TrialReport

SPEEDS = (1.0, 2.0, 4.0, 8.0)
POLICIES = ("measured", "guided", "factoring", "pull", "static:equal+balancer", "static:equal")


def unequal(options: BenchOptions) -> TrialReport:
    """Mean over draws of 300 uneven items; once as it is, once with the fastest device stalling half-way."""
    n_draws = 3 if options.is_quick else 40
    draws = [draw_costs("lognormal:0.5", 300, seed) for seed in range(n_draws)]
    rows = []
    for policy in POLICIES:
        steady = [_play(policy, costs, stalls=False) for costs in draws]
        stalled = [_play(policy, costs, stalls=True) for costs in draws]
        spreads = [utilisation_deviation(list(run.device2busy_s.values()), run.makespan_s) for run in steady]
        rows.append(
            {
                "policy": policy,
                "of_best": fmean(run.ratio for run in steady),
                "worst": min(run.ratio for run in steady),
                "stalled_of_best": fmean(run.ratio for run in stalled),
                "utilisation_std": fmean(spreads),
            }
        )
    note = (
        f"Mean of {n_draws} draws of 300 log-normal items, nothing told beforehand; 1.0 is the best "
        "possible. Stalled: the fastest device stands still from half of the best possible time on."
    )
    return TrialReport("unequal", "", rows, note)


def _play(policy: str, costs: list[float], *, stalls: bool):
    half_s = sum(costs) / sum(SPEEDS) / 2
    profile = ((half_s, 0.0), (20 * half_s, SPEEDS[-1])) if stalls else ()
    devices = [
        ModelDevice(f"{speed:g}x", speed, profile=profile if speed == SPEEDS[-1] else ()) for speed in SPEEDS
    ]
    name, _, balanced = policy.partition("+")
    return simulate(name, devices, costs, balancer=LoadBalancer() if balanced else None)
