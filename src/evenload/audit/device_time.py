"""What each device's time went into, as stretches that do not overlap and cover all of the recording."""

import numpy as np
from numpy.typing import NDArray

from evenload.audit.host import HOST_CAUSES, HostActivity
from evenload.audit.occupancy import Occupancy, Stretches, minus, sorted_union, together, within
from evenload.audit.recording import EXCHANGE, LATE, WORK, Recording

USES = ("kernels", "copies", "transfers", "late ranks", "other spans", *HOST_CAUSES)


class DeviceTime:
    """Stretches of each device by USES: kernels first, where they overlap; gaps by what the host did.

    copies       copies between memories, and other exchange that is no collective
    transfers    collectives, once all ranks have come
    other spans  repeats, loading, and samples in part
    """

    def __init__(
        self,
        recording: Recording,
        rows: list[NDArray[np.int64]],
        occupancy: list[Occupancy],
        window_ns: tuple[int, int],
    ) -> None:
        host = HostActivity(recording)
        is_collective = np.zeros(recording.n_spans, bool)
        if recording.collectives is not None:
            is_collective[recording.collectives.row] = True
        whole = Stretches(np.array(window_ns[:1]), np.array(window_ns[1:]))
        self._of: list[dict[str, Stretches]] = []
        for device, (own, one) in enumerate(zip(rows, occupancy, strict=True)):
            kind, start, stop = recording.kind[own], recording.start_ns[own], recording.stop_ns[own]
            is_use = {
                "kernels": kind == WORK,
                "copies": (kind == EXCHANGE) & ~is_collective[own],
                "transfers": (kind == EXCHANGE) & is_collective[own],
                "late ranks": kind == LATE,
                "other spans": kind > LATE,
            }
            found, taken = {}, Stretches.none()
            for use, chosen in is_use.items():
                spans = sorted_union(start[chosen], stop[chosen]) if chosen.any() else Stretches.none()
                found[use] = minus(spans, taken)
                taken = together((taken, spans))
            self._of.append({**found, **host.split(device, minus(whole, one.busy))})

    def between(self, device: int, use: str, start_ns: NDArray, stop_ns: NDArray) -> NDArray[np.int64]:
        """Nanoseconds that a device spent on ``use`` between each pair of times."""
        stretches = self._of[device][use]
        return within(stretches, np.maximum(start_ns, stop_ns)) - within(stretches, start_ns)

    def gaps_ns(self) -> dict[str, int]:
        """Nanoseconds of all devices in which nothing ran on them, by what the host did meanwhile."""
        return {cause: sum(one[cause].total_ns for one in self._of) for cause in HOST_CAUSES}
