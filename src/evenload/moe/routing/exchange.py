"""What ranks send to each other: at first what their planners were made from, then each batch's counts.

Every rank takes part in every exchange, whatever it was given. A rank whose own input is bad sends that as a
status: if it raised before the collective, the others would wait in it, or take its next batch for this one.
Exchanges are numbered, and all of one planner have the same size, so that a rank that is at another call than
the others is an error on all of them.
"""

import hashlib
import secrets
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenload._arguments import places
from evenload._optional import require
from evenload.errors import ConfigError, EvenloadError, PeerLost, quoted

CALLS = (
    "run",
    "update_redundancy_mapping",
    "update_redundancy_mapping (its placement)",
    "solve_probs",
    "restore_mapping",
)
N_FACTS = 16  # in the first message of a planner
MODULUS = 1 << 20  # of what is compared: squares of it can be summed over ranks
# Before the counts in a message: a status and a width; then numbers that must be the same on all ranks.
STATUS, WIDTH, SAME = 0, 1, 2
TAG, NUMBER, CALL, FACT_LOW, FACT_HIGH = range(5)
N_SAME = 5


class Exchange:
    """One rank's end of a ``torch.distributed`` group that shares counts.

    ``open``, ``agree`` and ``share`` are collectives. Each raises on every rank if it raises on one:
    ConfigError if what ranks gave is bad or does not fit together, PeerLost if a rank is gone.

    is_summed  whether ranks exchange the sum of their counts only
    """

    def __init__(self, group: Any, *, is_summed: bool):
        self._torch = require("torch", extra="moe", why="routing over a process group")
        self._dist = require("torch.distributed", extra="moe", why="routing over a process group")
        if not isinstance(group, self._dist.ProcessGroup):
            raise ConfigError(f"group is {quoted(group)}", hint="give a group of torch.distributed, or None")
        self._group, self._is_summed = group, is_summed
        self._device = device_of(group)
        self.rank: int = group.rank()
        self.n_ranks: int = group.size()
        self._number = 0
        self._head = SAME + (2 if is_summed else 1) * N_SAME + 2 * is_summed

    def open(self, error: EvenloadError | None, n_experts: Any, **facts: Any) -> None:
        """Compare ``facts`` over the ranks and make room for counts of ``n_experts``. Comes first.

        error  what is wrong with this rank's arguments, raised after all ranks have met
        """
        mine = np.zeros(N_FACTS, np.int64)
        named = {"experts": fact_of(n_experts), **{name: fact_of(value) for name, value in facts.items()}}
        mine[:2] = error is not None, secrets.randbelow(MODULUS)
        mine[2 : 2 + len(named)] = list(named.values())
        rows = self._gather(mine, "the making of a Planner")
        for name, values in zip(named, rows[:, 2:].T.tolist(), strict=False):
            if len(set(values)) > 1:
                raise ConfigError(
                    f"ranks differ in {name}: {values}",
                    hint="build the planner from the same values on every rank",
                ) from error
        self._raise(error, rows[:, 0])
        self._tag = int(rows[0, 1])
        self.message = np.zeros(self._head + int(n_experts), np.int64)
        self.counts = self.message[self._head :]  # of this rank: fill before ``share``

    def agree(self, call: str, name: str, value: Any, error: EvenloadError | None = None) -> None:
        """Compare ``value``, whose ``name`` is for errors, over the ranks."""
        self.counts[:] = 0
        self._meet(call, 0, fact_of(value), error, name)

    def share(self, call: str, width: int, error: EvenloadError | None = None) -> NDArray[np.int64]:
        """Counts [ranks, experts] of every rank, or [1, experts] their sum. One collective.

        width  of this rank's ids: all ranks' that have any must be the same
        error  what is wrong with this rank's ids, raised after all ranks have met
        """
        if error is not None:
            self.counts[:] = 0
        return self._meet(call, width, 0, error, "")

    def rows(self, own: Any, *, sums: bool) -> Any:
        """[ranks, experts] every rank's ``own`` [experts], or [1, experts] their sum; on its device."""
        try:
            if sums:
                total = own.clone()
                self._dist.all_reduce(total, group=self._group)
                return total[None]
            rows = self._torch.empty((self.n_ranks, len(own)), dtype=own.dtype, device=own.device)
            if own.is_cuda:
                self._dist.all_gather_into_tensor(rows, own, group=self._group)
            else:
                self._dist.all_gather(list(rows.unbind()), own, group=self._group)
        except RuntimeError as error:
            raise self._lost("run, on a device") from error
        return rows

    def _meet(
        self, call: str, width: int, fact: int, error: EvenloadError | None, name: str
    ) -> NDArray[np.int64]:
        same = np.zeros(N_SAME, np.int64)
        same[[TAG, NUMBER, CALL]] = self._tag, self._number, CALLS.index(call)
        same[[FACT_LOW, FACT_HIGH]] = fact % (1 << 16), fact >> 16 & 0xFFFF
        where = f"{call}, exchange {self._number}"
        if self._is_summed:
            return self._meet_in_sums(where, same, width, error, name)
        head = self.message[: self._head]
        head[STATUS], head[WIDTH], head[SAME:] = error is not None, width, same
        rows = self._gather(self.message, where)
        heads, counts = rows[:, : self._head], rows[:, self._head :]
        all_same = heads[:, SAME:]
        if (
            all_same[:, TAG] == self._tag
        ).all():  # else ranks are in different planners: each keeps its count
            self._number = (int(all_same[:, NUMBER].max()) + 1) % MODULUS
        if (all_same[:, : CALL + 1] != all_same[0, : CALL + 1]).any():
            at = [f"rank {rank} in {CALLS[row[CALL]]} {row[NUMBER]}" for rank, row in enumerate(all_same)]
            raise _shifted(", ".join(at))
        self._raise(error, heads[:, STATUS])
        facts = (all_same[:, FACT_LOW] + (all_same[:, FACT_HIGH] << 16)).tolist()
        if len(set(facts)) > 1:
            raise ConfigError(f"ranks differ in {name}: {facts}", hint="give every rank the same")
        widths = heads[:, WIDTH][counts.any(axis=1)]
        if len(widths) and (widths != widths[0]).any():
            raise _uneven(f": {sorted(set(widths.tolist()))}")
        return counts

    def _meet_in_sums(
        self, where: str, same: NDArray[np.int64], width: int, error: EvenloadError | None, name: str
    ) -> NDArray[np.int64]:
        """``_meet`` where only sums over ranks are known: numbers are all the same if n Σx² = (Σx)²."""
        head, has_ids = self.message[: self._head], bool(self.counts.any())
        head[STATUS], head[WIDTH] = error is not None, has_ids * width
        head[SAME : SAME + N_SAME], head[SAME + N_SAME : -2] = same, same * same
        head[-2:] = has_ids, has_ids * width * width
        total = self._torch.from_numpy(self.message.copy()).to(self._device)
        try:
            self._dist.all_reduce(total, group=self._group)
        except RuntimeError as lost:
            raise self._lost(where) from lost
        sums = total.cpu().numpy()
        head, counts = sums[: self._head], sums[self._head :]
        first, squares = head[SAME : SAME + N_SAME], head[SAME + N_SAME : -2]
        differs = self.n_ranks * squares != first * first
        is_shifted = bool(differs[: CALL + 1].any())
        if not differs[TAG]:  # after a shift, a number that all ranks know
            self._number = (int(first[NUMBER]) if is_shifted else self._number + 1) % MODULUS
        if is_shifted:
            raise _shifted(f"this rank ({self.rank}) in {where}")
        if error is not None:
            raise error
        if head[STATUS]:
            raise ConfigError(
                f"{head[STATUS]} of {self.n_ranks} ranks were given what is refused",
                hint="see the error there",
            )
        if differs.any():
            raise ConfigError(f"ranks differ in {name}", hint="give every rank the same")
        if head[-2] * head[-1] != head[WIDTH] ** 2:
            raise _uneven("")
        return counts[None]

    def _gather(self, mine: NDArray[np.int64], where: str) -> NDArray[np.int64]:
        """[ranks, numbers] every rank's ``mine``."""
        tensor = self._torch.from_numpy(mine)
        rows = self._torch.empty((self.n_ranks, len(mine)), dtype=tensor.dtype, device=self._device)
        try:
            if self._device == "cpu":
                self._dist.all_gather(list(rows.unbind()), tensor, group=self._group)
            else:
                self._dist.all_gather_into_tensor(rows, tensor.to(self._device), group=self._group)
        except RuntimeError as error:
            raise self._lost(where) from error
        return rows.cpu().numpy()

    def _lost(self, where: str) -> PeerLost:
        return PeerLost(
            f"rank {self.rank} of {self.n_ranks} lost a peer in {where}",
            hint="start the group again; see the other ranks' errors for what ended one",
        )

    def _raise(self, error: EvenloadError | None, statuses: NDArray[np.int64]) -> None:
        if error is not None:
            raise error
        if statuses.any():
            wrong = np.flatnonzero(statuses).tolist()
            raise ConfigError(f"ranks {wrong} were given what is refused", hint="see the error there")


def _shifted(where: str) -> ConfigError:
    return ConfigError(
        f"ranks are at different calls: {where}",
        hint="let every rank make the same calls in the same order, with an empty tensor if it has no tokens",
    )


def _uneven(widths: str) -> ConfigError:
    return ConfigError(f"ranks have ids of different widths{widths}", hint="use the same top-k on every rank")


def device_of(group: Any) -> str:
    """Where the tensors are that a ``torch.distributed`` group exchanges: "cuda" or "cpu"."""
    dist = require("torch.distributed", extra="moe")
    try:
        return "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    except ValueError:  # a group that torch has no list of, such as vLLM makes where ranks may join
        return "cuda" if group.name() == "nccl" else "cpu"


def fact_of(value: Any) -> int:
    """A number that stands for ``value`` when ranks compare: itself, or a checksum. Never raises."""
    if isinstance(value, (int, np.integer)):
        return int(value) if abs(value) < 1 << 32 else zlib.crc32(repr(value).encode())
    if value is None:
        return 0
    try:
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    except Exception:
        # Whatever it is, the error comes after all ranks have met.
        array = np.empty(0, object)
    if array.dtype.kind == "O":  # the bytes of objects are addresses
        return zlib.crc32(repr(type(value)).encode())
    return zlib.crc32(repr((array.shape, array.dtype.str)).encode() + array.tobytes())


def attempt(check: Callable[[], Any]) -> tuple[Any, EvenloadError | None]:
    """What ``check`` returns, or None and its error: a rank must meet the others before it raises."""
    try:
        return check(), None
    except EvenloadError as error:
        return None, error
    except Exception as error:
        refused = ConfigError(
            f"an argument is refused: {type(error).__name__}: {error}", hint="see what the call takes"
        )
        refused.__cause__ = error
        return None, refused


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
        if met[:, 0].any():
            lacking = np.flatnonzero(met[:, 0]).tolist()
            raise ConfigError(f"ranks {lacking} have no placement", hint="see the error there")
        if (met[:, 1:3] != met[0, 1:3]).any():
            raise ConfigError(
                f"placements of shapes {met[:, 1:3].tolist()}", hint="give every rank's, of one shape"
            )
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


def _checked(phy2log: Any) -> NDArray[np.int64]:
    found = places("phy2log", phy2log)
    if found.ndim != 2:
        raise ConfigError(f"phy2log has shape {found.shape}", hint="give integers [layers, slots]")
    return np.ascontiguousarray(found, np.int64)


def _digest(array: NDArray[np.int64]) -> int:
    return int.from_bytes(hashlib.sha256(array.tobytes()).digest()[:8], "little", signed=True)
