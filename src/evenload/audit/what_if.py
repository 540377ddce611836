"""What other dealing would have reached with the same pieces of work, by the simulator of real runs.

    pieces of work ──► phases, between moments in which no device works
                   ──► the pieces of each phase dealt again: `measured`, with size hints, placed beforehand

Pieces do not cross from one phase into another; the time in which no device worked, and the start-up that
devices had on average, stay as they were; and each second of work costs what it cost on average in launch
gaps, exchange and repeats. Within a phase every piece is taken to be ready at its start, and to take as long
on any other device, but for devices that were clearly slower or faster with spans of the same names.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from evenload.audit.pieces import WorkPhase
from evenload.balance.fleet import ModelDevice
from evenload.balance.metrics import makespan
from evenload.balance.pack import loads, pack_lpt
from evenload.balance.simulate import simulate

__all__ = ["MOST_SIMULATED_DEVICES", "WhatIf", "most_pieces", "what_ifs"]

MOST_PIECES = 4000
MOST_DEALINGS = 256_000  # pieces x devices: each dealing looks at every device
MOST_SIMULATED_DEVICES = 128


def most_pieces(n_devices: int) -> int:
    """How many pieces are simulated at most, so that it takes seconds."""
    return min(MOST_PIECES, MOST_DEALINGS // n_devices)


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One other way to place the work of a run, and the seconds that the run takes with it."""

    name: str
    says: str
    wall_s: float


def what_ifs(
    phases: Sequence[WorkPhase], fixed_s: float, more: float, speeds: Sequence[float]
) -> list[WhatIf]:
    """The ways to place the phases' work again.

    fixed_s  seconds that no dealing changes: start-up, and pauses in which no device works
    more     seconds of overhead beside each second of work
    speeds   [devices] work per second
    """
    devices = [ModelDevice(f"d{at}", speed) for at, speed in enumerate(speeds)]
    measured_s = hinted_s = placed_s = fixed_s
    for phase in phases:
        work = [s * (1 + more) * speeds[at] for s, at in zip(phase.seconds, phase.device, strict=True)]
        # Copies of pieces would gain nothing: no modelled device slows down.
        measured_s += simulate("measured", devices, work, repeatable=False).makespan_s
        hinted_s += simulate("measured", devices, work, hints=work, repeatable=False).makespan_s
        placed_s += makespan(loads(work, pack_lpt(work, speeds), len(speeds)), speeds)
    return [
        WhatIf("measured", "dealt while running, by what devices have shown so far", measured_s),
        WhatIf("size hints", "the same, with the size of each piece known: the long ones first", hinted_s),
        WhatIf("placement", "placed before the run, the longest piece first", placed_s),
    ]
