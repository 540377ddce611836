"""``FetchCosts``: what a token and a fetch of an expert's weights cost, for plans that take the least
time."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evenload._arguments import number, places, whole
from evenload.errors import ConfigError


@dataclass(frozen=True, slots=True)
class FetchCosts:
    """A rank's seconds for a token, and those for a fetch of an expert's weights.

    token_s           seconds that a rank works for one token of one expert in this layer, forward (and
                      backward, if
                      it trains)
    expert_bytes      weights of one expert in one layer (with its gradient on the way back, if it trains)
    bytes_per_s       of a rank's link, each way
    node_bytes_per_s  of a rank's link to ranks of other nodes; by default ``bytes_per_s``
    nodes             the node of each rank; by default all are on one
    hidden_s          seconds of other work that fetches run beside, such as attention

    A batch takes ``token_s`` x the busiest rank's tokens, and what the busiest link needs beyond
    ``hidden_s``. Raises ConfigError for a number below 0 or not finite, and a speed of 0.
    """

    token_s: float
    expert_bytes: float
    bytes_per_s: float
    node_bytes_per_s: float | None = None
    nodes: tuple[int, ...] | None = None
    hidden_s: float = 0.0

    def __post_init__(self) -> None:
        number("token_s", self.token_s, is_zero_allowed=False)
        number("expert_bytes", self.expert_bytes)
        number("hidden_s", self.hidden_s)
        number("bytes_per_s", self.bytes_per_s, is_zero_allowed=False)
        if self.node_bytes_per_s is not None:
            number("node_bytes_per_s", self.node_bytes_per_s, is_zero_allowed=False)
        if self.nodes is not None:
            object.__setattr__(self, "nodes", tuple(places("nodes", self.nodes).ravel().tolist()))
        if not np.isfinite(self.table()).all():
            raise ConfigError(
                f"a fetch takes {self.expert_bytes / self.bytes_per_s} s",
                hint="check the units: bytes, bytes / s",
            )

    def table(self) -> NDArray[np.float64]:
        """[4] seconds of a token, of a fetch inside a node, of one between nodes, and those hidden."""
        far = self.bytes_per_s if self.node_bytes_per_s is None else self.node_bytes_per_s
        return np.array(
            [self.token_s, self.expert_bytes / self.bytes_per_s, self.expert_bytes / far, self.hidden_s],
            np.float64,
        )

    def nodes_of(self, n_ranks: int) -> NDArray[np.int64]:
        """[ranks] int64. Raises ConfigError if ``nodes`` has another length."""
        if self.nodes is None:
            return np.zeros(n_ranks, np.int64)
        if len(self.nodes) != whole("n_ranks", n_ranks):
            raise ConfigError(
                f"nodes of {len(self.nodes)} ranks", hint=f"give one for each of {n_ranks} ranks"
            )
        return np.array(self.nodes, np.int64)
