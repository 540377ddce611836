"""Algorithms whose global model is a mean of the clients' models, and what each of them corrects."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from evenload.clients.algorithms.base import Algorithm, Orders, Server, mean_of, minus, zeros
from evenload.clients.algorithms.reduce import Mean
from evenload.clients.values.optimizer import SGD
from evenload.clients.values.recipe import Recipe
from evenload.clients.values.result import ClientResult
from evenload.errors import ConfigError


@dataclass(frozen=True, slots=True)
class FedAvg(Algorithm):
    """The mean of the clients' models, weighted by their rows (or equally).

    Source: McMahan et al., "Communication-efficient learning of deep networks", AISTATS 2017.
    """

    by_rows: bool = True

    def orders(self, server: Server, ids: Sequence[int], recipe: Recipe) -> list[Orders]:
        return [Orders(recipe, server.state, reduce=Mean(by_rows=self.by_rows))]

    def step(self, server: Server, passes: Sequence[Any], recipe: Recipe) -> Server:
        return server.after(passes[0])


@dataclass(frozen=True, slots=True)
class FedProx(Algorithm):
    """A FedAvg whose clients stay near the global model by a term mu/2 |w - w_global|^2.

    Source: Li et al., "Federated optimization in heterogeneous networks", MLSys 2020.
    """

    mu: float = 0.01
    by_rows: bool = True

    def __post_init__(self) -> None:
        if self.mu < 0:
            raise ConfigError(f"mu={self.mu} is below 0")

    def orders(self, server: Server, ids: Sequence[int], recipe: Recipe) -> list[Orders]:
        near = replace(recipe, prox=self.mu)
        return [Orders(near, server.state, reduce=Mean(by_rows=self.by_rows))]

    def step(self, server: Server, passes: Sequence[Any], recipe: Recipe) -> Server:
        return server.after(passes[0])


@dataclass(frozen=True, slots=True)
class FedNova(Algorithm):
    """FedAvg of changes per step taken, so that clients of more steps do not count for more.

    momentum  of the clients' SGD: its steps count by how far they carry
    Source: Wang et al., "Tackling the objective inconsistency problem", NeurIPS 2020.
    """

    momentum: float = 0.0

    def orders(self, server: Server, ids: Sequence[int], recipe: Recipe) -> list[Orders]:
        own = recipe.optimizer.momentum if isinstance(recipe.optimizer, SGD) else None
        if own is None or abs(own - self.momentum) > 1e-12:
            raise ConfigError(
                f"FedNova(momentum={self.momentum}) with {recipe.optimizer}",
                hint="let clients use SGD of this momentum",
            )
        return [Orders(recipe, server.state)]

    def step(self, server: Server, passes: Sequence[Any], recipe: Recipe) -> Server:
        results: list[ClientResult] = passes[0]
        rows = sum(r.n_rows for r in results)
        lengths = {r.client: self._length(r.steps) for r in results}
        effective = sum(r.n_rows / rows * lengths[r.client] for r in results)
        state = mean_of(results)
        for n, pull in zeros(server).items():
            for r in results:
                pull += (r.state[n] - server.state[n]) * (r.n_rows / rows / lengths[r.client])
            state[n] = server.state[n] + effective * pull
        return server.after(state)

    def _length(self, steps: int) -> float:
        """|a_i| of the paper: how much the gradients of so many steps weigh together."""
        rho = self.momentum
        return float(steps) if rho == 0 else (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)


@dataclass(frozen=True, slots=True)
class FedDyn(Algorithm):
    """A dynamic regularization: a client's loss minus <h_i, w> plus alpha/2 |w - w_global|^2.

    Source: Acar et al., "Federated learning based on dynamic regularization", ICLR 2021.
    """

    alpha: float = 0.01

    def __post_init__(self) -> None:
        if not self.alpha > 0:
            raise ConfigError(f"alpha={self.alpha} is not above 0")

    def init(self, server: Server) -> Server:
        return server.remembering(h=zeros(server), own={})

    def orders(self, server: Server, ids: Sequence[int], recipe: Recipe) -> list[Orders]:
        none, own = zeros(server), server.memory["own"]
        corrections = [{n: -own.get(i, none)[n] for n in server.params} for i in ids]
        return [Orders(replace(recipe, prox=self.alpha), server.state, corrections=corrections)]

    def step(self, server: Server, passes: Sequence[Any], recipe: Recipe) -> Server:
        results: list[ClientResult] = passes[0]
        none, own = zeros(server), dict(server.memory["own"])
        h = {n: t.clone() for n, t in server.memory["h"].items()}
        for r in results:
            moved = minus(r.state, server.state, server.params)
            before = own.get(r.client, none)
            own[r.client] = {n: before[n] - self.alpha * moved[n] for n in moved}
            for n in h:
                h[n] -= self.alpha / server.n_clients * moved[n]
        mean = mean_of(results, by_rows=False)
        state = {**mean, **{n: mean[n] - h[n] / self.alpha for n in server.params}}
        return server.after(state, h=h, own=own)


@dataclass(frozen=True, slots=True)
class Scaffold(Algorithm):
    """A correction by control variates: a client's gradients are corrected by c - c_i. ``lr``: the server's.

    Raises ConfigError for client optimisers other than plain SGD: the variates' rule is SGD's.
    Source: Karimireddy et al., "Stochastic controlled averaging", ICML 2020, option II.
    """

    lr: float = 1.0

    def init(self, server: Server) -> Server:
        return server.remembering(**{"global": zeros(server), "own": {}})

    def orders(self, server: Server, ids: Sequence[int], recipe: Recipe) -> list[Orders]:
        if not isinstance(recipe.optimizer, SGD) or recipe.optimizer.momentum:
            raise ConfigError(
                "SCAFFOLD's control variates need plain SGD", hint="use SGD(lr=...) without momentum"
            )
        c, none = server.memory["global"], zeros(server)
        corrections = [minus(c, server.memory["own"].get(i, none), server.params) for i in ids]
        return [Orders(recipe, server.state, corrections=corrections)]

    def step(self, server: Server, passes: Sequence[Any], recipe: Recipe) -> Server:
        results: list[ClientResult] = passes[0]
        c, own, none, total = (
            server.memory["global"],
            dict(server.memory["own"]),
            zeros(server),
            zeros(server),
        )
        for r in results:
            before = own.get(r.client, none)
            drift = minus(server.state, r.state, server.params)
            rates = sum(recipe.optimizer.lr * recipe.schedule.factor(i, r.steps) for i in range(r.steps))
            own[r.client] = {n: before[n] - c[n] + drift[n] / rates for n in c}
            for n, t in total.items():
                t += own[r.client][n] - before[n]
        mean = mean_of(results, by_rows=False)
        moved = {n: server.state[n] + self.lr * (mean[n] - server.state[n]) for n in server.params}
        fresh = {n: c[n] + t / server.n_clients for n, t in total.items()}
        return server.after({**mean, **moved}, **{"global": fresh, "own": own})


@dataclass(frozen=True, slots=True)
class Ditto(Algorithm):
    """A FedAvg with a personal model of each client, kept near the global one by lam/2 |v - w|^2.

    The personal models are in the server's memory under "personal", by client.
    Source: Li et al., "Fair and robust federated learning through personalization", ICML 2021.
    """

    lam: float = 0.1

    def init(self, server: Server) -> Server:
        return server.remembering(personal={})

    def orders(self, server: Server, ids: Sequence[int], recipe: Recipe) -> list[Orders]:
        own = [server.memory["personal"].get(i, server.state) for i in ids]
        personal = replace(recipe, prox=self.lam)
        return [
            Orders(recipe, server.state, reduce=Mean()),
            Orders(personal, own, anchor=server.state),
        ]

    def step(self, server: Server, passes: Sequence[Any], recipe: Recipe) -> Server:
        fresh = {r.client: {n: t.clone() for n, t in r.state.items()} for r in passes[1]}
        return server.after(passes[0], personal={**server.memory["personal"], **fresh})


@dataclass(frozen=True, slots=True)
class FedPer(Algorithm):
    """FedAvg of all tensors but those whose names begin with one of ``personal``: clients keep these.

    They are in the server's memory under "personal", by client. Raises ConfigError if no name fits.
    Source: Arivazhagan et al., "Federated learning with personalization layers", arXiv:1912.00818. With the
    norms' names it is FedBN: Li et al., ICLR 2021.
    """

    personal: tuple[str, ...]

    def init(self, server: Server) -> Server:
        if not any(self._is_personal(name) for name in server.state):
            raise ConfigError(
                f"no tensor's name begins with one of {self.personal}", hint=f"names: {list(server.state)}"
            )
        return server.remembering(personal={})

    def orders(self, server: Server, ids: Sequence[int], recipe: Recipe) -> list[Orders]:
        kept = server.memory["personal"]
        starts = [{**server.state, **kept[i]} if i in kept else server.state for i in ids]
        return [Orders(recipe, starts)]

    def step(self, server: Server, passes: Sequence[Any], recipe: Recipe) -> Server:
        results: list[ClientResult] = passes[0]
        kept = dict(server.memory["personal"])
        for r in results:
            kept[r.client] = {n: r.state[n].clone() for n in r.state if self._is_personal(n)}
        mean = mean_of(results)
        state = {n: server.state[n] if self._is_personal(n) else mean[n] for n in server.state}
        return server.after(state, personal=kept)

    def _is_personal(self, name: str) -> bool:
        return name.startswith(self.personal)


# --- optimisers of the server ---------------------------------------------------------------------


class _ByMean(Algorithm):
    """An algorithm whose server follows the clients' mean change as a gradient."""

    __slots__ = ()

    def orders(self, server: Server, ids: Sequence[int], recipe: Recipe) -> list[Orders]:
        return [Orders(recipe, server.state, reduce=Mean())]


@dataclass(frozen=True, slots=True)
class FedAvgM(_ByMean):
    """Momentum of the server: v <- beta v + change; w <- w + lr v.

    Source: Hsu, Qi, Brown, arXiv:1909.06335.
    """

    lr: float = 1.0
    momentum: float = 0.9

    def init(self, server: Server) -> Server:
        return server.remembering(velocity=zeros(server))

    def step(self, server: Server, passes: Sequence[Any], recipe: Recipe) -> Server:
        change = minus(passes[0], server.state, server.params)
        velocity = {n: self.momentum * server.memory["velocity"][n] + d for n, d in change.items()}
        state = {**passes[0], **{n: server.state[n] + self.lr * v for n, v in velocity.items()}}
        return server.after(state, velocity=velocity)


@dataclass(frozen=True, slots=True)
class _Adaptive(_ByMean):
    """An adaptive optimiser of the server, without bias correction; buffers are averaged.

    Source: Reddi et al., "Adaptive federated optimization", ICLR 2021, algorithm 2.
    """

    lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def init(self, server: Server) -> Server:
        square = {n: torch.full_like(server.state[n], self.tau**2) for n in server.params}
        return server.remembering(mean=zeros(server), square=square)

    def step(self, server: Server, passes: Sequence[Any], recipe: Recipe) -> Server:
        change = minus(passes[0], server.state, server.params)
        mean = {n: self.beta1 * server.memory["mean"][n] + (1 - self.beta1) * d for n, d in change.items()}
        square = {n: self._square(server.memory["square"][n], d * d) for n, d in change.items()}
        moved = {n: server.state[n] + self.lr * mean[n] / (square[n].sqrt() + self.tau) for n in change}
        return server.after({**passes[0], **moved}, mean=mean, square=square)

    def _square(self, v: Tensor, d2: Tensor) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class FedAdam(_Adaptive):
    """A server that takes steps of Adam with the mean change as gradient."""

    def _square(self, v: Tensor, d2: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * d2


@dataclass(frozen=True, slots=True)
class FedYogi(_Adaptive):
    """A server that takes steps of Yogi with the mean change as gradient."""

    def _square(self, v: Tensor, d2: Tensor) -> Tensor:
        return v - (1 - self.beta2) * d2 * torch.sign(v - d2)


@dataclass(frozen=True, slots=True)
class FedAdagrad(_Adaptive):
    """A server that takes steps of Adagrad with the mean change as gradient."""

    beta1: float = 0.0

    def _square(self, v: Tensor, d2: Tensor) -> Tensor:
        return v + d2
