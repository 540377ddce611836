"""User-level differential privacy: McMahan et al., "Learning differentially private recurrent language
models", ICLR 2018: each client's change is clipped, all count equally, and the mean gets Gaussian noise.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from evenload.clients.algorithms.base import Algorithm, Server, minus
from evenload.clients.values.keys import NOISE, key
from evenload.clients.values.recipe import Recipe
from evenload.clients.values.result import ClientResult
from evenload.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PrivateFedAvg(Algorithm):
    """FedAvg of clipped changes with noise, private for each client.

    clip   largest norm of a client's change
    noise  standard deviation of the noise on the sum, in multiples of ``clip``
    expected  clients expected in a round, which the sum is divided by; None: by those that came back, which
           is right for cohorts of fixed size. With ``Cohort(size=q, poisson=True)`` say q times all clients:
           how many came is then private as well
    noise_seed  what the noise follows from; None: drawn from the operating system when a run begins, and kept
           in its checkpoint. Whoever knows it can take the noise off: give one for tests only

    Only parameters that are trained are private, so models with anything else in their state (buffers, frozen
    or tied parameters) are refused with a ConfigError. What epsilon this gives depends on sampling and
    rounds: see ``evenload.clients.accountant``.
    """

    clip: float = 1.0
    noise: float = 1.0
    expected: float | None = None
    noise_seed: int | None = None

    def __post_init__(self) -> None:
        if not self.clip > 0 or not self.noise >= 0:
            raise ConfigError(
                f"clip={self.clip}, noise={self.noise}: use a clip above 0 and a noise of 0 or more"
            )
        if self.expected is not None and not self.expected > 0:
            raise ConfigError(f"expected={self.expected} clients", hint="give rate times clients, or None")

    @property
    def acts_alone(self) -> bool:
        """Noise is added to a round that nobody takes part in, too: else that would show."""
        return self.expected is not None

    def init(self, server: Server) -> Server:
        others = sorted(set(server.state) - set(server.params))
        if others:
            raise ConfigError(
                f"{', '.join(others[:3])}: no trained parameter of its own, and would show what clients have",
                hint="use a model without buffers (GroupNorm for BatchNorm), frozen or tied parameters",
            )
        own = secrets.randbits(62) if self.noise_seed is None else self.noise_seed
        return server.remembering(noise_seed=own)

    def step(self, server: Server, passes: Sequence[Any], recipe: Recipe) -> Server:
        results: list[ClientResult] = passes[0] if passes else []
        generator = torch.Generator().manual_seed(key(NOISE, server.memory["noise_seed"], server.round))
        total = {n: torch.zeros_like(server.state[n], dtype=torch.float64) for n in server.params}
        for r in results:
            change = minus(r.state, server.state, server.params)
            norm = float(torch.stack([d.double().norm() for d in change.values()]).norm())
            for n, t in total.items():
                t.add_(change[n].double(), alpha=min(1.0, self.clip / max(norm, 1e-30)))
        state = {}
        for n, t in total.items():
            t += torch.randn(t.shape, generator=generator, dtype=torch.float64) * (self.noise * self.clip)
            mean = t / (self.expected or len(results))
            state[n] = (server.state[n].double() + mean).to(server.state[n].dtype)
        return server.after(state)
