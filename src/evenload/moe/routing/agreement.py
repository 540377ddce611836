"""One placement for all ranks, where each has planned by itself."""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenload._arguments import places
from evenload._optional import require
from evenload.errors import ConfigError, PeerLost, quoted
from evenload.moe.routing.exchange import attempt, device_of


def agree_on(phy2log: Any, group: Any) -> NDArray[np.int64]:
    """One placement for all ranks of ``group``, a ``torch.distributed`` one: rank 0's, where any differs.

    Processors may round differently, and so a search may end elsewhere on one of them. Digests are compared;
    the placement itself is sent only if they differ. A collective: every rank must call it.

    phy2log  [layers, slots] integers, of one shape on all ranks
    group    None: this process is all there is

    Raises ConfigError on every rank if one was given something else, PeerLost if one is gone.
    """
    if group is None:
        return _checked(phy2log)
    torch = require("torch", extra="moe", why="agreeing over a process group")
    dist = require("torch.distributed", extra="moe", why="agreeing over a process group")
    mine, error = attempt(lambda: _checked(phy2log))
    if not isinstance(group, dist.ProcessGroup):
        raise ConfigError(f"group is {quoted(group)}", hint="give a group of torch.distributed, or None")
    device = device_of(group)
    facts = [error is not None, 0, 0, 0] if error is not None else [0, *mine.shape, _digest(mine)]
    own = torch.tensor(facts, dtype=torch.int64, device=device)
    rows = [torch.empty_like(own) for _ in range(group.size())]
    try:
        dist.all_gather(rows, own, group=group)
        met = torch.stack(rows).cpu().numpy()
        if error is not None:
            raise error
        _check_all(met)
        if (met[:, 3] == met[0, 3]).all():
            return mine
        # A sum with zeros: a broadcast asks for ranks by numbers that some engines' groups do not have.
        sent = torch.from_numpy(mine * (group.rank() == 0)).to(device)
        dist.all_reduce(sent, group=group)
    except RuntimeError as lost:
        raise PeerLost(
            "a peer was lost while ranks agreed on a placement", hint="start the group again"
        ) from lost
    return sent.cpu().numpy()


def _check_all(met: NDArray[np.int64]) -> None:
    """Raise ConfigError unless all ranks have a placement, of one shape: [ranks, (status, shape, digest)]."""
    if met[:, 0].any():
        raise ConfigError(
            f"ranks {np.flatnonzero(met[:, 0]).tolist()} have no placement", hint="see the error there"
        )
    if (met[:, 1:3] != met[0, 1:3]).any():
        raise ConfigError(
            f"placements of shapes {met[:, 1:3].tolist()}", hint="give every rank's, of one shape"
        )


def _checked(phy2log: Any) -> NDArray[np.int64]:
    found = places("phy2log", phy2log)
    if found.ndim != 2:
        raise ConfigError(f"phy2log has shape {found.shape}", hint="give integers [layers, slots]")
    return np.ascontiguousarray(found, np.int64)


def _digest(array: NDArray[np.int64]) -> int:
    return int.from_bytes(hashlib.sha256(array.tobytes()).digest()[:8], "little", signed=True)
