"""Devices of a certified run that did nothing: how near to the best it is if they had worked, too.

Nobody knows how fast such a device is, so a certificate's bound is without it. Here each counts as fast as
the fastest that worked in a stage.
"""

from fractions import Fraction
from typing import Any

from evenload.balance.run_claim import StageChunks, best_witness

__all__ = ["idle_devices", "share_with_idle"]


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

    page  a certificate that ``evenload.certificate.check`` accepts, as ``load`` reads it

    It is the certificate's own share if all devices worked, or could not have made the run shorter: one long
    item is on one device, whatever the others do.
    """
    claimed = Fraction(page["claim"]["bound"]) / Fraction(page["claim"]["achieved"])
    idle = idle_devices(page)
    if not idle:
        return claimed
    evidence = page["evidence"]
    lanes = [one["lanes"] for one in evidence["devices"]]
    stages = [_with_idle(stage, idle) for stage in evidence["stages"]]
    bound = 0
    for stretch in evidence["stretches"]:
        some = [stages[at] for at in stretch["stages"]]
        prices = list(map(float, stretch["prices"])) or [0.0] * len(some)
        bound += best_witness(some, prices, lanes).bound
    return min(claimed, bound / Fraction(page["claim"]["achieved"]))


def _with_idle(stage: Any, idle: list[int]) -> StageChunks:
    speeds = {device: float(speed) for device, speed in enumerate(stage["speeds"]) if speed is not None}
    if speeds:
        speeds |= dict.fromkeys(idle, max(speeds.values()))
    rows: list[list[Any]] = [[*map(int, row[:4]), *row[4:]] for row in stage["chunks"]]
    n_of = [(sum(row[4][1::2]), sum(row[4][1::2]) + row[5]) for row in rows]
    return StageChunks(str(stage.get("name", "")), rows, n_of, speeds)
