"""What a trial of ``evenload bench`` is asked for and what it reports; devices compared with the first."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from evenload.balance.metrics import amdahl, speed_up

if TYPE_CHECKING:
    from evenload.devices import DevicePool

Row = dict[str, Any]


@dataclass(frozen=True)
class BenchOptions:
    """The settings that every trial gets.

    specs      device selections to measure, from one device to all
    n_workers  for what runs on workers without devices
    is_quick   sizes that keep the whole under a minute on two cores; they say less
    """

    specs: tuple[str, ...]
    n_workers: int
    is_quick: bool
    has_peers: bool = True


@dataclass(frozen=True)
class TrialReport:
    """One trial's result: rows with equal keys and a note on what was done, or why it was skipped."""

    name: str
    title: str
    rows: Sequence[Row] = ()
    note: str = ""
    skipped: str = ""
    hint: str = ""
    missing: Sequence[str] = ()
    took_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def device_row(
    spec: str, n: int, work_s: float, x_bound: float | None, utilisation_std: float, **more: float
) -> Row:
    """A row of what ``n`` devices did, for ``compare_with_first``."""
    row = {"devices": spec, "n": n, "work_s": work_s, **more}
    return {**row, "x_bound": x_bound, "utilisation_std": utilisation_std}


def compare_with_first(rows: Sequence[Row], start_s: float = 0.0) -> list[Row]:
    """``rows`` (devices, n, work_s, ...) with speed-up, efficiency and Amdahl's prediction against the first.

    start_s  the part of the first row's time that more devices cannot shorten
    """
    base = rows[0]
    share = base["work_s"] / (base["work_s"] + start_s) if base["work_s"] + start_s > 0 else 1.0
    done = []
    for row in rows:
        n = row["n"] / base["n"]
        faster = speed_up(base["work_s"] + start_s, row["work_s"] + start_s)
        more = {"speed_up": faster, "efficiency": faster / n, "amdahl": amdahl(share, max(1.0, n))}
        done.append({**row, **more})
    return done


def compare_selections(
    specs: Sequence[str], measure: "Callable[[DevicePool], Row]", compare: Callable[[Row, Row], Row]
) -> list[Row]:
    """For every selection a row for its first device and one for all of it.

    measure  figures of a pool
    compare  what to add to a row, from the first row of its selection and the row
    """
    from evenload.devices import DevicePool

    rows = []
    for spec in specs:
        pool = DevicePool.find(spec)
        base: Row = {}
        for n_devices in sorted({1, len(pool)}):
            devices = tuple(pool)[:n_devices]
            label = spec if n_devices == len(pool) else f"{devices[0].id} of {spec}"
            row = measure(pool.select(devices))
            base = base or row
            rows.append({"devices": label, **row, **compare(base, row)})
    return rows
