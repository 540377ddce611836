"""``Routing``: quotas and loads of a batch, with their bound."""

from collections.abc import Mapping
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from evenload.balance.flow.certificate import Certificate, RoutedLayer, forced_demand, relative_speeds
from evenload.balance.flow.graph import ReplicaGraph

__all__ = ["Routing"]


class Routing:
    """The quotas and loads of one call, in arrays that the router's next call overwrites (see ``copy``).

    quotas      [layers, slots] int64 tokens for each physical slot; an expert's quotas sum to its demand
    loads       [layers, gpus] int64 in units of cost: tokens, active experts or tiles
    demands     [layers, experts] int64, in units of cost as well
    speeds      [gpus] int64 or None where all are equal
    fixed       [layers, gpus] int64 or None;  capacities [layers, slots] int64 or None
    tile        tokens of a unit of cost; 0 if each expert that serves any costs one
    """

    __slots__ = (
        "capacities",
        "cuts",
        "demands",
        "fixed",
        "graph",
        "loads",
        "quotas",
        "speeds",
        "summary",
        "tile",
    )

    def __init__(
        self,
        graph: ReplicaGraph,
        speeds: NDArray[np.int64] | None,
        arrays: Mapping[str, NDArray] | None = None,
        tile: int = 1,
    ):
        """``arrays``: as ``shapes`` says; new ones by default."""
        self.graph, self.tile = graph, tile
        self.speeds = speeds
        if arrays is None:
            arrays = {name: np.zeros(*shape) for name, shape in self.shapes(graph).items()}
        self.loads, self.quotas = arrays["loads"], arrays["quotas"]
        self.summary, self.cuts = arrays["summary"], arrays["cuts"]
        self.demands = np.zeros((graph.n_layers, graph.n_experts), dtype=np.int64)
        self.fixed: NDArray[np.int64] | None = None
        self.capacities: NDArray[np.int64] | None = None

    @staticmethod
    def shapes(graph: ReplicaGraph) -> dict[str, tuple[tuple[int, ...], type]]:
        """The arrays that a call writes, in the kernel's order: name -> (shape, dtype)."""
        n_layers, n_gpus = graph.n_layers, graph.n_gpus
        return {
            "loads": ((n_layers, n_gpus), np.int64),
            "quotas": ((n_layers, graph.n_slots), np.int64),
            "summary": ((n_layers, 3), np.int64),  # status, certificate's load and speed
            "cuts": ((n_layers, n_gpus), np.bool_),
        }

    @property
    def peaks(self) -> NDArray[np.float64]:
        """[layers] the largest load / speed of a GPU, where the fastest has speed 1."""
        if self.speeds is None:
            return self.loads.max(axis=1).astype(np.float64)
        return (self.loads * self.speeds.max() / np.maximum(self.speeds, 1)).max(axis=1)

    @property
    def bounds(self) -> NDArray[np.float64]:
        """[layers] lower bounds of the peak of any routing, whole or fractional, as certificates prove."""
        fastest = 1 if self.speeds is None else self.speeds.max()
        return self.summary[:, 1] * fastest / self.summary[:, 2]

    @property
    def imbalance(self) -> NDArray[np.float64]:
        """[layers] peak over mean load per unit of speed; 1 is perfect, and the value without load."""
        speed = self.graph.alive.sum() if self.speeds is None else self.speeds.sum() / self.speeds.max()
        mean = self.loads.sum(axis=1) / speed
        return np.divide(self.peaks, mean, out=np.ones(len(mean)), where=mean > 0)

    def certificate(self, layer: int = 0) -> Certificate:
        """The proof that no routing of this layer has a lower peak."""
        fastest = 1 if self.speeds is None else int(self.speeds.max())
        relative = relative_speeds(self.graph, self.speeds)
        peak = max(Fraction(int(n)) / s for n, s in zip(self.loads[layer], relative, strict=True) if s)
        _, load, speed = (int(x) for x in self.summary[layer])
        capacities = None if self.capacities is None else self.capacities[layer]
        shut_in = forced_demand(self.graph, layer, self.demands[layer], self.cuts[layer], capacities)
        return Certificate(
            gpus=tuple(np.flatnonzero(self.cuts[layer]).tolist()),
            experts=tuple(np.flatnonzero(shut_in).tolist()),
            load=load,
            speed=Fraction(speed, fastest),
            bound=Fraction(load * fastest, speed),
            peak=peak,
            routed=self._routed(layer, capacities),
        )

    def _routed(self, layer: int, capacities: NDArray[np.int64] | None) -> RoutedLayer:
        return RoutedLayer(
            graph=self.graph,
            layer=layer,
            demand=self.demands[layer].copy(),
            quotas=self.quotas[layer].copy(),
            speeds=self.speeds,
            fixed=None if self.fixed is None else self.fixed[layer].copy(),
            capacities=capacities,
            tile=self.tile,
        )

    def _repr_html_(self) -> str:
        """The loads of the layer that is least even, over their mean."""
        from evenload.notebook import bars, page

        layer = int(self.imbalance.argmax())
        speeds = self.graph.alive if self.speeds is None else self.speeds / self.speeds.max()
        mean = self.loads[layer].sum() / speeds.sum()
        shares = self.loads[layer] / np.maximum(speeds, 1e-300) / max(mean, 1e-300)
        least = self.bounds[layer] / max(mean, 1e-300)
        title = (
            f"layer {layer} of {self.graph.n_layers}: the busiest GPU has {self.imbalance[layer]:.3f}x "
            f"the mean, no routing over these copies has less than {least:.3f}x"
        )
        return page(title, bars({f"GPU {gpu}": share for gpu, share in enumerate(shares.tolist())}, 1.0))

    def copy(self) -> "Routing":
        """A copy with arrays of its own."""
        twin = Routing.__new__(Routing)
        for name in self.__slots__:
            value = getattr(self, name)
            setattr(twin, name, value.copy() if isinstance(value, np.ndarray) else value)
        return twin
