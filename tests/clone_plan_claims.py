"""What a clone plan claims, checked in plain sums."""

import numpy as np


def check_plan(plan, counts, homes, spare, cap, least_tokens=1, domains=None):
    """Everything that a plan claims, in plain sums."""
    n_ranks, clones = len(spare), list(zip(plan.experts.tolist(), plan.ranks.tolist(), strict=True))
    assert len(set(clones)) == len(clones)
    assert all(homes[expert] != rank for expert, rank in clones)
    domains = np.zeros(n_ranks, int) if domains is None else np.asarray(domains)
    assert (domains[np.asarray(homes)[plan.experts]] == domains[plan.ranks]).all()
    assert (plan.tokens >= least_tokens).all()
    assert (np.bincount(plan.ranks, minlength=n_ranks) <= spare).all()
    assert np.bincount(plan.experts, minlength=len(homes)).max(initial=0) <= (n_ranks if cap is None else cap)
    assert (np.bincount(plan.experts, plan.tokens, len(homes)) <= counts).all()
    loads = np.bincount(homes, counts, n_ranks) + np.bincount(plan.ranks, plan.tokens, n_ranks)
    loads -= np.bincount(homes[plan.experts], plan.tokens, n_ranks)
    np.testing.assert_array_equal(plan.loads, loads)
    assert plan.peak == loads.max()
    certificate = plan.certificate()
    assert certificate.proves(counts, plan.layer) or certificate.peak == 0
    assert plan.first_bound <= certificate.peak <= plan.peak
    assert plan.peak_bound in (certificate.peak, plan.peak)
    assert plan.fetch_bound <= plan.fetches
