"""``ChainLink``: what a training was after a step, and what it did since the link before.

    link 0 ── steps 1 to 100 ── link 1 ── steps 101 to 200 ── link 2        each is a leaf of a log

Each link holds the digest of the one before, so that links of two runs make no chain. Here is what a leaf
says, and what must hold between neighbours: no clock, no device and no torch.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from evenload.errors import ConfigError, FormatError, quoted

FORMAT = "evenload-training-1"
NO_ORDER = NO_LINK = hashlib.sha256().hexdigest()  # of no sample; before the first link
DIGEST = re.compile("[0-9a-f]{64}")
PARTS = ("place", "order", "weights", "optimizer")  # what a repeated step must have alike


@dataclass(frozen=True, slots=True)
class ChainLink:
    """A link of a chain: what a training was after step ``stop``, and what it did since step ``start``.

    place      the epoch, and how many of its samples were trained
    order      SHA-256 of the samples since ``start``, see ``with_samples``
    weights    SHA-256 of parameters and buffers: names, types, shapes, bits
    optimizer  SHA-256 of its state and settings
    shares     [ranks] samples that each trained since ``start``; another fleet has others
    run        what makes another training of it: model, samples, seed, global batch, grain
    kernels    what decides how a grain is computed: torch, device, level of processor, threads
    before     SHA-256 of the leaf of the link before; of nothing in the first link
    """

    start: int
    stop: int
    place: tuple[int, ...]
    order: str
    weights: str
    optimizer: str
    shares: tuple[int, ...]
    run: Mapping[str, Any]
    kernels: Mapping[str, Any]
    before: str = NO_LINK

    def behind(self, leaf: bytes | None) -> "ChainLink":
        """Return it as the link behind the one with this ``leaf``; None: as the first."""
        return replace(self, before=hashlib.sha256(leaf or b"").hexdigest())

    def leaf(self) -> bytes:
        """Return it as a line of JSON, for a log."""
        return json.dumps({"format": FORMAT, **asdict(self)}, separators=(",", ":")).encode()

    @classmethod
    def parse(cls, leaf: bytes) -> "ChainLink | None":
        """Read what ``leaf`` has returned; None if it is something else."""
        try:
            page = json.loads(leaf)
            is_ours = page.pop("format") == FORMAT and type(page["place"]) is type(page["shares"]) is list
            link = cls(**page | {name: tuple(page[name]) for name in ("place", "shares")})
            return link if is_ours and _is_sane(link) else None
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
            return None

    def differs_from(self, here: "ChainLink") -> list[str]:
        """Name the parts in which steps came out otherwise ``here``; no order is compared at their start."""
        parts = [name for name in PARTS if here.start < here.stop or name != "order"]
        return [name for name in parts if getattr(self, name) != getattr(here, name)]


def links_of(leaves: Iterable[bytes]) -> Iterator[ChainLink]:
    """Yield the links of a log, each checked against the one before.

    Raises ConfigError for a log of something else, FormatError for a link that cannot follow.
    """
    before: ChainLink | None = None
    leaf_before: bytes | None = None
    for number, leaf in enumerate(leaves):
        link = ChainLink.parse(leaf)
        if link is None:
            kind = FormatError if before else ConfigError
            raise kind(f"leaf {number} of the log is no link of a training's chain: {quoted(leaf)}")
        if before and (link.start != before.stop or link.stop <= link.start):
            why = f"has steps {link.start} to {link.stop}, and the one before ends at step {before.stop}"
            raise FormatError(f"link {number} {why}", hint="trust only what lies before it")
        if before and (other := changes(before.run, link.run)):
            raise FormatError(f"link {number} is of another run than those before: {other[0]}")
        if link != link.behind(leaf_before):
            why = (
                "is behind another link than the one before it here"
                if before
                else "is not the first of a chain"
            )
            raise FormatError(f"link {number} {why}", hint="trust only what lies before it")
        yield link
        before, leaf_before = link, leaf


def changes(there: Mapping[str, Any], here: Mapping[str, Any]) -> tuple[str, ...]:
    """Say what differs between two sets of facts, ``there`` first."""
    names = sorted(name for name in {*there, *here} if there.get(name) != here.get(name))
    return tuple(f"{one[:40]} there {quoted(there.get(one))}, here {quoted(here.get(one))}" for one in names)


def with_samples(order: str, samples: Iterable[Any]) -> str:
    """Return the digest of an order that goes on with the samples of one more step."""
    listed = [int(one) if hasattr(one, "__index__") else one for one in samples]
    return hashlib.sha256(f"{order}{listed}".encode()).hexdigest()


def _is_sane(link: ChainLink) -> bool:
    counts = (link.start, link.stop, *link.place, *link.shares)
    facts = (*link.run.values(), *link.kernels.values())
    return (
        len(link.place) == 2
        and all(type(one) is int and 0 <= one < 2**62 for one in counts)
        and all(DIGEST.fullmatch(one) for one in (link.order, link.weights, link.optimizer, link.before))
        and all(one is None or isinstance(one, str | int) for one in facts)
    )
