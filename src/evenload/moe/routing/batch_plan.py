"""``BatchPlan``: the routing of counts that were known before the batch."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenload.balance.flow import Router
from evenload.moe.routing.dispatch import Dispatcher
from evenload.moe.routing.padding import without_padding

__all__ = ["BatchPlan"]


class BatchPlan:
    """The routing of counts that were known in advance.

    quotas       [slots] int64 ids for each slot
    loads        [ranks] int64
    certificate  the proof that no routing has a lower peak
    """

    def __init__(
        self, router: Router, dispatcher: Dispatcher, counts: NDArray[np.int64], rank: int, n_ranks: int
    ):
        routing = router.solve(counts if counts.ndim == 1 else counts.sum(axis=0)).copy()
        self.quotas, self.loads = routing.quotas[0], routing.loads[0]
        self.certificate = routing.certificate()
        self.dispatcher, self._counts, self._rank, self._n_ranks = dispatcher, counts, rank, n_ranks

    def apply(self, idx: Any, *, mask: Any = None) -> Any:
        """Physical slot of each id, like ``Planner.run``; ``mask`` as there.

        If the plan has the counts of every rank, ids must be the ones counted, and loads are exact. Otherwise
        this rank's ids are cut in the quotas' proportions; that is exact, too, if they are the ones counted
        and there is one rank.
        """
        dispatcher, idx = self.dispatcher, without_padding(idx, mask)
        if self._counts.ndim == 2:
            shares = dispatcher.exact_shares(self.quotas, self._counts, self._rank)
        else:
            own = dispatcher.count(idx)
            shares = dispatcher.dithered_shares(self.quotas, self._counts, own, self._rank, self._n_ranks)
        return dispatcher.map(idx, shares)
