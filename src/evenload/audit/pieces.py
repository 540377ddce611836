"""Pieces of work that a plan could have placed elsewhere, and how fast each device did pieces of one name."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from evenload.audit.occupancy import Stretches, together
from evenload.audit.recording import WORK, Recording
from evenload.balance.metrics import lower_bound

MOST_PHASES = 200
MOST_COMPARED_NAMES = 200
LEAST_COMPARED = 20  # spans of names that other devices had, too
LEAST_DIFFERENCE = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """A table of work, by device and start: when each piece began, what it took, and where."""

    start_ns: NDArray[np.int64]
    length_ns: NDArray[np.int64]
    device: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class WorkPhase:
    """A stretch of a run within which work may move: seconds of each piece, by start, and where it ran."""

    seconds: Sequence[float]
    device: Sequence[int]


def pieces_of(recording: Recording, rows: Sequence[NDArray[np.int64]]) -> Pieces:
    """The pieces of a recording: what each working span adds to the time that its device worked.

    So a span within another adds nothing, and a device's pieces sum to the time that it worked.

    rows  each device's spans, by start
    """
    empty = np.empty(0, np.int64)
    starts, lengths, where = [empty], [empty], [np.empty(0, np.int32)]
    for device, own in enumerate(rows):
        own = own[recording.kind[own] == WORK]
        if not len(own):
            continue
        start, stop = recording.start_ns[own], recording.stop_ns[own]
        before = np.concatenate([start[:1], np.maximum.accumulate(stop[:-1])])
        adds = np.maximum(stop - np.maximum(start, before), 0)
        starts.append(start[adds > 0])
        lengths.append(adds[adds > 0])
        where.append(np.full(len(lengths[-1]), device, np.int32))
    return Pieces(np.concatenate(starts), np.concatenate(lengths), np.concatenate(where))


def bound_of(pieces: Pieces, speeds: Sequence[float]) -> float:
    """Seconds below which no plan could have come: all the work over all speeds, and the longest pieces."""
    work = pieces.length_ns / 1e9 * np.asarray(speeds)[pieces.device]
    longest = work if len(work) <= len(speeds) else np.partition(work, -len(speeds))[-len(speeds) :]
    return max(float(work.sum()) / sum(speeds), lower_bound(longest.tolist(), speeds))


def phases_of(
    pieces: Pieces, busy: Sequence[Stretches], gap_ns: int, n_most: int
) -> tuple[list[WorkPhase], int]:
    """The phases of a run, and the nanoseconds in which no device was busy between its first span and last.

    A phase ends where no device is busy for ``gap_ns``; of many such pauses, the longest count.

    n_most  neighbours on a device are one piece as far as needed to have about so many pieces in all; and
            there are at most so many phases times devices
    """
    at_work = together(busy)
    pause_ns = at_work.start_ns[1:] - at_work.stop_ns[:-1]
    is_long = pause_ns >= max(1, gap_ns)
    borders = np.flatnonzero(is_long)
    borders = np.sort(
        borders[np.argsort(-pause_ns[borders], kind="stable")][: min(MOST_PHASES, n_most // len(busy)) - 1]
    )
    few, phase = _merged(pieces, at_work.start_ns[borders + 1], n_most)
    edges = np.searchsorted(phase, np.arange(len(borders) + 2))
    phases = [
        WorkPhase((few.length_ns[first:last] / 1e9).tolist(), few.device[first:last].tolist())
        for first, last in pairwise(edges)
        if last > first
    ]
    return phases, int(pause_ns[is_long].sum())


def _merged(pieces: Pieces, edges_ns: NDArray[np.int64], n_most: int) -> tuple[Pieces, NDArray[np.int64]]:
    """Fewer pieces, by phase and start, and the phase of each: neighbours of a device and phase are merged.

    Those are merged that begin in the same grain of the device's work; a long piece stays by itself or with
    short ones before it.
    """
    phase = np.searchsorted(edges_ns, pieces.start_ns, side="right")
    done_ns = np.cumsum(pieces.length_ns) - pieces.length_ns
    grain_ns = max(1, int(pieces.length_ns.sum()) // n_most) if len(phase) > n_most else 1
    keys = (pieces.device, phase, done_ns // grain_ns)
    begins = np.ones(len(phase), bool)
    begins[1:] = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    first = np.flatnonzero(begins)
    lengths = np.add.reduceat(pieces.length_ns, first) if len(first) else pieces.length_ns
    order = np.lexsort((pieces.start_ns[first], phase[first]))
    few = Pieces(pieces.start_ns[first][order], lengths[order], pieces.device[first][order])
    return few, phase[first][order]


def speeds_of(recording: Recording) -> list[float]:
    """The speed of each device, by how long spans took of which others had some of the same name.

    1 where that is not clear: less than LEAST_COMPARED such spans, or a difference that is below
    LEAST_DIFFERENCE or three standard errors. Compared are the means of the logarithms, name by name.
    """
    n_devices = len(recording.devices)
    lengths = recording.stop_ns - recording.start_ns
    chosen = np.flatnonzero((recording.kind == WORK) & (lengths > 0))
    by_name = np.bincount(recording.name[chosen], weights=lengths[chosen], minlength=len(recording.names))
    names = np.argsort(-by_name, kind="stable")[:MOST_COMPARED_NAMES]
    place = np.full(len(recording.names), -1, np.int64)
    place[names] = np.arange(len(names))
    chosen = chosen[place[recording.name[chosen]] >= 0]
    cell = place[recording.name[chosen]] * n_devices + recording.device[chosen]
    log_s = np.log(lengths[chosen])
    shape = (len(names), n_devices)
    n, total, squares = (
        np.bincount(cell, weights=weights, minlength=len(names) * n_devices).reshape(shape)
        for weights in (None, log_s, log_s * log_s)
    )
    return [_speed(device, n, total, squares) for device in range(n_devices)]


def _speed(device: int, n: NDArray, total: NDArray, squares: NDArray) -> float:
    """How many times faster a device is than all others together, over the names that both had."""
    own_n, other_n = n[:, device], n.sum(axis=1) - n[:, device]
    both = (own_n > 0) & (other_n > 0)
    own_n, other_n = own_n[both], other_n[both]
    if own_n.sum() < LEAST_COMPARED or other_n.sum() < LEAST_COMPARED:
        return 1.0
    own, other = total[both, device], total[both].sum(axis=1) - total[both, device]
    own_var = np.maximum(squares[both, device] / own_n - (own / own_n) ** 2, 0)
    other_squares = squares[both].sum(axis=1) - squares[both, device]
    other_var = np.maximum(other_squares / other_n - (other / other_n) ** 2, 0)
    share = own_n / own_n.sum()
    slower = float((share * (own / own_n - other / other_n)).sum())
    error = float(np.sqrt((share**2 * (own_var / own_n + other_var / other_n)).sum()))
    is_clear = abs(slower) > max(np.log1p(LEAST_DIFFERENCE), 3 * error)
    return float(np.exp(-slower)) if is_clear else 1.0
