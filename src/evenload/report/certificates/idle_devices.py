"""Devices of a certified run that did nothing: how near to the best it is if they had worked, too.

Nobody knows how fast such a device is, so a certificate's bound is without it. Here each counts as fast as
the fastest that worked in a stage.
"""

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from evenload.balance.run_claim import StageChunks, best_witness, up_to

__all__ = ["idle_devices", "share_up_to", "share_with_idle"]


def idle_devices(page: Any) -> list[int]:
    """Return the numbers of the devices of a checked certificate that did nothing in any stage of a run."""
    if page["kind"] != "run":
        return []
    evidence = page["evidence"]
    used = {chunk[0] for stage in evidence["stages"] for chunk in stage["chunks"]}
    used |= {part for at in used for part in evidence["devices"][at]["parts"] or []}
    return [at for at, one in enumerate(evidence["devices"]) if at not in used and not one["parts"]]


def share_with_idle(page: Any) -> Fraction:
    """Return bound over achieved, with devices that did nothing as fast as the fastest in each stage.

    page  a certificate that ``load`` has read, and ``evenload.certificate.check`` has accepted

    It is the certificate's own share if all devices worked, or could not have made the run shorter: one long
    item is on one device, whatever the others do.
    """
    claimed = Fraction(page["claim"]["bound"]) / Fraction(page["claim"]["achieved"])
    if not idle_devices(page):
        return claimed
    bound = sum(best_witness(*stretch).bound for stretch in _stretches(page, idle_devices(page)))
    return min(claimed, bound / Fraction(page["claim"]["achieved"]))


def share_up_to(page: Any, *, with_idle: bool) -> Fraction:
    """Return up to what the share of the best possible may be, at speeds that a run's chunks do not rule out.

    page  a certificate that ``load`` has read, and ``evenload.certificate.check`` has accepted
    """
    claimed = Fraction(page["claim"]["bound"]) / Fraction(page["claim"]["achieved"])
    if page["kind"] != "run":
        return claimed
    idle = idle_devices(page) if with_idle else []
    most = sum(Fraction(up_to(*stretch)) for stretch in _stretches(page, idle))
    return min(Fraction(1), most / Fraction(page["claim"]["achieved"]))


def _stretches(page: Any, idle: list[int]) -> Iterator[tuple[list[StageChunks], list[float], list[int]]]:
    """For each stretch its stages, with idle devices as fast as the fastest; prices, and lanes of devices."""
    evidence = page["evidence"]
    stages = [_with_idle(stage, idle) for stage in evidence["stages"]]
    for stretch in evidence["stretches"]:
        some = [stages[at] for at in stretch["stages"]]
        prices = list(map(float, stretch["prices"])) or [0.0] * len(some)
        yield some, prices, [one["lanes"] for one in evidence["devices"]]


def _with_idle(stage: Any, idle: list[int]) -> StageChunks:
    chunks: list[list[Any]] = [[*map(int, row[:4]), *row[4:]] for row in stage["chunks"]]
    n_of = [(sum(row[4][1::2]), sum(row[4][1::2]) + row[5]) for row in chunks]
    speeds: dict[int, tuple[Any, float, float, float]] = {
        d: (who, float(one), float(low), float(high)) for d, (who, one, low, high) in stage["rate"].items()
    }
    if speeds:
        fastest = max(one[1] for one in speeds.values())
        speeds |= {d: (d, fastest, fastest, fastest) for d in idle}
    waited = list(map(int, stage.get("waited", ()))) or [0] * len(chunks)
    return StageChunks(str(stage.get("name", "")), chunks, n_of, speeds, waited=waited)
