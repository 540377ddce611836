"""``CloneLayer``: where a layer's experts are at home, and where clones may go."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["CloneLayer"]


class CloneLayer:
    """The homes of one layer's experts, and the slots for clones beside them.

    homes  [experts] int64 rank of each expert
    spare  [ranks] int64 slots of each rank for clones
    cap    the most clones of one expert

    ``expert_start`` [ranks + 1] and ``experts`` [experts] list each rank's experts. Rank r's slots are r *
    width up to (r + 1) * width - 1: those of its own experts first, in order of ids, then the spare ones.
    """

    def __init__(self, homes: NDArray[np.int64], spare: NDArray[np.int64], cap: int):
        self.homes, self.spare, self.cap = homes, spare, cap
        self.n_experts, self.n_ranks = len(homes), len(spare)
        self.experts = np.argsort(homes, kind="stable").astype(np.int64)
        self.expert_start = np.searchsorted(homes[self.experts], np.arange(self.n_ranks + 1)).astype(np.int64)
        self.n_home = np.diff(self.expert_start)
        self.width = int((self.n_home + spare).max())
        self.home_slot = np.empty(self.n_experts, np.int64)
        place = np.arange(self.n_experts) - np.repeat(self.expert_start[:-1], self.n_home)
        self.home_slot[self.experts] = homes[self.experts] * self.width + place
        self.n_slots = self.n_ranks * self.width
