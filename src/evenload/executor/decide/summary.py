"""The summary of a finished run: counts, seconds, and the ratio to the least possible time."""

from dataclasses import asdict, dataclass, field
from typing import Any

from evenload._plain_text import seconds_text
from evenload.balance.factors import Factors

LEAST_S = 1.0  # a shorter run says little about shares


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """One device's part of a run. ``items_per_s``: per busy second; ``utilisation``: busy over wall time."""

    items: int
    chunks: int
    busy_s: float
    utilisation: float
    items_per_s: float | None


@dataclass(frozen=True, slots=True, repr=False)
class Summary:
    """The figures of a finished run.

    wall_s          that the caller waited: for the call, and from the first request for a result to the last
                    result; what is imported before the call is not in it
    startup_s       of it, the time before the first item was sent: workers start, a model is built
    bound_s         the least time that any plan could have taken on these devices, from what they were
                    measured to do in this run; ``evenload.balance.bound`` says what that takes as given
    bound_up_to_s   the bound may be as much: the run does not show the devices' speeds better
    ratio_to_bound  (wall_s - startup_s) / bound_s: 1.0 is the best possible; None if nothing was measured
    limit           what sets the bound: "work" or "longest item"
    imbalance       most busy seconds of a device over the mean: 1.0 is even
    retries         items that were run again, by cause: died (with a worker), overtime, memory, spoilt
    learned         what the items' times were found to go by; "" if nothing was found, or was looked for
    factors         where the time went: factors that multiply to the share of ``wall_s`` that was useful
                    work, in the words of the report; None if none was done
    restored        of the items, those that an earlier run had done: their results came from the journal
    """

    total: int
    done: int
    failed: int
    wall_s: float
    startup_s: float
    items_per_s: float
    bound_s: float
    ratio_to_bound: float | None
    limit: str
    imbalance: float
    devices: dict[str, DeviceShare] = field(default_factory=dict)
    duplicates: int = 0
    workers_lost: int = 0
    restored: int = 0
    retries: dict[str, int] = field(default_factory=dict)
    learned: str = ""
    factors: Factors | None = None
    bound_up_to_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {"schema": 1, **asdict(self)}

    def _repr_html_(self) -> str:
        from evenload.notebook import page, share, table

        rows = [
            [name, one.items, one.chunks, one.busy_s, share(one.utilisation), one.items_per_s]
            for name, one in self.devices.items()
        ]
        return page(
            str(self).partition("\n")[0],
            table(["device", "items", "chunks", "busy s", "in the task", "items/s"], rows),
        )

    def __str__(self) -> str:
        """The counts and seconds, what the time went into if there was enough of it, and a line a device."""
        n = len(self.devices)
        text = (
            f"{self.done} of {self.total} done in {seconds_text(self.wall_s)} on {n} device{'s' * (n != 1)}"
        )
        if self.failed:
            text += f", {self.failed} failed"
        if self.restored:
            text += f", {self.restored} of them before"
        if self.startup_s >= 0.01:
            text += f" ({seconds_text(self.startup_s)} to start)"
        if self.wall_s >= LEAST_S:
            text += self._where_time_went()
        if self.learned:
            text += f"; {self.learned}"
        return "\n".join([text, *self._device_lines()])

    def _where_time_went(self) -> str:
        text = "" if self.factors is None else f" · {self.factors.text()}"
        if self.ratio_to_bound is not None:
            text += (
                f"; the work took {self.ratio_to_bound:.2f}x the least possible, {seconds_text(self.bound_s)}"
            )
            if self.bound_up_to_s > 1.05 * self.bound_s:
                text += f" (not known better: up to {seconds_text(self.bound_up_to_s)})"
        return text

    def _device_lines(self) -> list[str]:
        worked_s = sum(one.busy_s for one in self.devices.values())
        width = max((len(name) for name in self.devices), default=0)
        return [
            f"  {name:<{width}}  {one.items} item{'s' * (one.items != 1)} in {seconds_text(one.busy_s)}"
            + (f", {one.busy_s / worked_s:.0%} of all seconds of work" if self.wall_s >= LEAST_S else "")
            for name, one in self.devices.items()
            if len(self.devices) > 1 and worked_s
        ]

    __repr__ = __str__  # at a prompt, too: the fields are in ``to_json``
