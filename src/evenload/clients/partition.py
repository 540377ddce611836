"""Ways to deal one data set to clients, evenly or not: each gives int64 arrays of rows, one per client.

``split`` makes clients of them without copying a row.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from evenload.errors import ConfigError

if TYPE_CHECKING:
    from evenload.clients.values.data import Rows

Parts = list[np.ndarray]


def iid(n_rows: int, n_clients: int, *, seed: int = 0) -> Parts:
    """Shuffled, and cut into parts whose sizes differ by one at most."""
    _check(n_clients)
    return [
        np.sort(part) for part in np.array_split(np.random.default_rng(seed).permutation(n_rows), n_clients)
    ]


def dirichlet(
    labels: Sequence[int] | np.ndarray, n_clients: int, alpha: float, *, seed: int = 0, least: int = 0
) -> Parts:
    """Each label's rows are dealt in shares drawn from Dirichlet(alpha): the smaller alpha, the less even.

    least  draw again (at most 1000 times) until every client has so many rows
    Raises ConfigError if that never happens.
    Source: Hsu, Qi, Brown, "Measuring the effects of non-identical data distribution", arXiv:1909.06335.
    """
    _check(n_clients)
    if not alpha > 0:
        raise ConfigError(f"alpha={alpha} is not above 0")
    labels, rng = np.asarray(labels), np.random.default_rng(seed)
    for _ in range(1000):
        parts: list[list[np.ndarray]] = [[] for _ in range(n_clients)]
        for label in np.unique(labels):
            rows = rng.permutation(np.flatnonzero(labels == label))
            cuts = (np.cumsum(rng.dirichlet(np.full(n_clients, alpha))) * len(rows)).astype(int)[:-1]
            for part, own in zip(parts, np.split(rows, cuts), strict=True):
                part.append(own)
        found = [np.sort(np.concatenate(part)) for part in parts]
        if min(len(part) for part in found) >= least:
            return found
    raise ConfigError(
        f"no deal in 1000 gave each of {n_clients} clients {least} rows",
        hint="use a larger alpha, or fewer clients",
    )


def shards(
    labels: Sequence[int] | np.ndarray, n_clients: int, per_client: int = 2, *, seed: int = 0
) -> Parts:
    """Rows sorted by label, cut into equal shards; every client gets ``per_client`` of them at random.

    Source: McMahan et al., "Communication-efficient learning of deep networks", AISTATS 2017, section 3.
    """
    _check(n_clients)
    labels, n = np.asarray(labels), n_clients * per_client
    if per_client < 1 or n > len(labels):
        raise ConfigError(f"{len(labels)} rows do not make {n_clients} x {per_client} shards")
    cut = np.array_split(np.argsort(labels, kind="stable"), n)
    order = np.random.default_rng(seed).permutation(n).reshape(n_clients, per_client)
    return [np.sort(np.concatenate([cut[i] for i in line])) for line in order]


def quantity_skew(n_rows: int, n_clients: int, alpha: float, *, seed: int = 0) -> Parts:
    """Sizes drawn from Dirichlet(alpha), labels not looked at; every client gets at least one row.

    Source: Li, Diao, Chen, He, "Federated learning on non-IID data silos", ICDE 2022.
    """
    _check(n_clients)
    if n_rows < n_clients:
        raise ConfigError(f"{n_rows} rows for {n_clients} clients")
    rng = np.random.default_rng(seed)
    sizes = 1 + np.floor(rng.dirichlet(np.full(n_clients, alpha)) * (n_rows - n_clients)).astype(int)
    sizes[: n_rows - sizes.sum()] += 1
    return [np.sort(part) for part in np.split(rng.permutation(n_rows), np.cumsum(sizes)[:-1])]


def by_key(keys: Sequence[Any] | np.ndarray) -> Parts:
    """One client per distinct key (a user, a speaker, a file), in the order of the keys' first appearance."""
    rows: dict[Any, list[int]] = {}
    for row, key in enumerate(np.asarray(keys).tolist()):
        rows.setdefault(key, []).append(row)
    return [np.array(own, np.int64) for own in rows.values()]


def split(x: Any, y: Any, parts: Parts) -> "list[Rows]":
    """Clients that share the tensors ``x`` and ``y``."""
    import torch

    from evenload.clients.values.data import Rows

    x, y = torch.as_tensor(x), torch.as_tensor(y)
    return [Rows(x, y, np.asarray(part, np.int64)) for part in parts]


def _check(n_clients: int) -> None:
    if n_clients < 1:
        raise ConfigError(f"{n_clients} clients: use 1 or more")
