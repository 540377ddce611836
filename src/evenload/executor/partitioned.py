"""One array in slices over the devices: ``run_partitioned``."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from evenload._arguments import choice, length, suggests_arguments
from evenload._plain_text import seconds_text
from evenload.balance import partition
from evenload.balance.policy import Measured, Policy, Static
from evenload.devices import DevicePool
from evenload.errors import ConfigError, SlicesFailed, TaskError
from evenload.executor.decide.summary import Summary
from evenload.executor.executor import DeviceSpec, Executor
from evenload.executor.run.map_options import MapOptions

STRATEGIES = (*partition.STRATEGIES, "measured")
SLICES_PER_DEVICE = 32  # for "measured": fine enough to even out devices that were misjudged


@dataclass(frozen=True, slots=True)
class ArraySlice:
    """A slice of the array: rows ``start`` .. ``stop - 1`` ran on ``device`` and gave ``result``."""

    start: int
    stop: int
    device: str
    result: Any


@dataclass(frozen=True, slots=True)
class ParallelResult:
    """The results of all slices, in input order.

    wall_s         from the start of the first slice to the end of the last
    device_s       seconds that each device computed
    bound_s        the least time that any split could have taken at the speeds measured here
    """

    strategy: str
    slices: tuple[ArraySlice, ...]
    wall_s: float
    summary: Summary

    @property
    def results(self) -> list[Any]:
        return [piece.result for piece in self.slices]

    @property
    def by_device(self) -> dict[str, list[Any]]:
        """Each device's results, in input order."""
        return {
            device: [piece.result for piece in self.slices if piece.device == device]
            for device in self.summary.devices
        }

    @property
    def device_s(self) -> dict[str, float]:
        return {device: share.busy_s for device, share in self.summary.devices.items()}

    @property
    def bound_s(self) -> float:
        return self.summary.bound_s

    @property
    def ratio_to_bound(self) -> float | None:
        """``wall_s`` over ``bound_s``: 1.0 is the best possible."""
        return self.wall_s / self.bound_s if self.bound_s > 0 else None

    def _repr_html_(self) -> str:
        from evenload.notebook import page, share, table

        rows = [
            [name, one.items, one.busy_s, share(one.busy_s / self.wall_s if self.wall_s else None)]
            for name, one in self.summary.devices.items()
        ]
        ratio = self.ratio_to_bound
        how_good = "" if ratio is None else f", {ratio:.2f}x the least possible"
        title = f"{self.strategy}: {len(self.slices)} slices in {seconds_text(self.wall_s)}{how_good}"
        return page(title, table(["device", "rows", "busy s", "at work"], rows))

    def joined(self) -> Any:
        """All results as one, along their first axis, of the kind that the slices gave.

        Lists and tuples give a list; torch tensors, JAX arrays, pandas frames and numpy arrays stay what they
        are, with their dtype and device; other arrays are joined as numpy joins them. Raises ConfigError for
        no slices, for scalars, and for results that do not fit together.
        """
        return join(self.results)


@suggests_arguments
def run_partitioned(
    fn: Callable[[Any], Any],
    array: Any,
    strategy: str = "proportional",
    *,
    devices: DeviceSpec = "all",
    executor: Executor | None = None,
) -> ParallelResult:
    """Run ``fn`` on contiguous slices of ``array``, one (or for "measured" many) per device.

    array     anything with ``len`` and slices: numpy arrays, tensors, lists
    strategy  equal | proportional (to the devices' scores) | dynamic (score x free share) | measured (small
              slices, dealt by measured speed: for when nobody knows how fast the devices are)
    executor  whose warm workers to use; by default one on ``devices`` is made and closed
    Raises UnknownName on another strategy, ConfigError if ``array`` has no slices, the TaskError of a slice
    that failed, and SlicesFailed, which holds them all, if several did. After a failure "measured" begins no
    further slice.
    """
    choice("strategy", strategy, STRATEGIES)
    if not hasattr(array, "__len__") or not hasattr(array, "__getitem__") or isinstance(array, dict):
        raise ConfigError(
            f"a {type(array).__name__} cannot be cut into slices", hint="give an array or a list"
        )
    if executor is not None:
        return _run_slices(fn, array, strategy, executor)
    with Executor(devices) as own:
        return _run_slices(fn, array, strategy, own)


def _run_slices(fn: Callable[[Any], Any], array: Any, strategy: str, executor: Executor) -> ParallelResult:
    pool = executor.devices  # what the slices are cut for, whatever comes or goes from now on
    counts, policy = _split(length("array", array), strategy, pool)
    ranges = [piece for piece in partition.slices(counts) if len(piece)]
    options = MapOptions(policy=policy, stage="run_partitioned")
    items = [array[piece.start : piece.stop] for piece in ranges]
    results = executor.map_with(fn, items, options, pool)
    done: list[ArraySlice] = []
    failed: list[TaskError] = []
    began_s = time.monotonic()
    for block in results.blocks():
        for at, index in enumerate(block.items):
            piece = ranges[index]
            if at in block.failed:
                failed.append(block.values[at])
            else:
                done.append(ArraySlice(piece.start, piece.stop, block.device, block.values[at]))
        if failed and strategy == "measured":
            results.stop()  # the others of so many slices would say the same
    if failed:
        raise failed[0] if len(failed) == 1 else SlicesFailed(f"{len(failed)} slices failed", failed)
    assert results.summary is not None
    return ParallelResult(strategy, tuple(done), time.monotonic() - began_s, results.summary)


def _split(n: int, strategy: str, pool: DevicePool) -> tuple[list[int], Policy]:
    """Rows per slice, and how the slices are dealt."""
    if strategy == "measured":
        return partition.equal(n, min(n, SLICES_PER_DEVICE * len(pool))) if n else [], Measured()
    utilisation = (
        [pool.load(device).reading.utilization for device in pool.ids] if strategy == "dynamic" else None
    )
    counts = partition.split(strategy, n, [pool.score(device) for device in pool.ids], utilisation)
    return counts, Static(tuple(1 if count else 0 for count in counts))


def join(results: Sequence[Any]) -> Any:
    """All of ``results`` as one, along their first axis.

    Lists, tuples and ranges give a list; bytes and text stay what they are; torch tensors, JAX arrays, pandas
    frames, series and indices, and numpy arrays (masked ones too) keep their kind, dtype and device. Other
    arrays are joined as numpy joins them.
    Raises ConfigError for no results, for scalars, and for results that do not fit together.
    """
    if not results:
        raise ConfigError("there are no slices to join", hint="the array was empty: use .results")
    try:
        return _joiner(results)(results)
    except (TypeError, ValueError, RuntimeError) as error:
        kinds = ", ".join(sorted({type(result).__name__ for result in results}))
        raise ConfigError(
            f"results of type {kinds} cannot be joined: {type(error).__name__}: {str(error)[:200]}",
            hint="have the function return arrays or lists of as many rows as its slice, or use .results",
        ) from error


def _joiner(results: Sequence[Any]) -> Callable[[Sequence[Any]], Any]:
    for kinds, joiner in (
        ((list, tuple, range), lambda pieces: [value for piece in pieces for value in piece]),
        ((bytes, bytearray), lambda pieces: type(pieces[0])().join(pieces)),
        ((str,), "".join),
    ):
        if all(isinstance(result, kinds) for result in results):
            return joiner
    for package, kinds, joiner in (
        ("torch", ("Tensor",), lambda torch: lambda pieces: torch.cat(list(pieces))),
        ("jax", ("Array",), lambda jax: lambda pieces: jax.numpy.concatenate(list(pieces))),
        ("pandas", ("DataFrame", "Series"), lambda pandas: pandas.concat),
        ("pandas", ("Index",), lambda pandas: lambda pieces: pieces[0].append(list(pieces[1:]))),
        ("numpy", ("ma.MaskedArray",), lambda numpy: numpy.ma.concatenate),
    ):
        module = sys.modules.get(package)  # what is not imported has made none of the results
        classes = tuple(_member(module, kind) for kind in kinds)
        if module is not None and all(isinstance(result, classes) for result in results):
            return joiner(module)
    import numpy

    return numpy.concatenate


def _member(module: Any, path: str) -> Any:
    """``module.a.b`` for "a.b"; an empty tuple, which nothing is an instance of, if it has none."""
    for name in path.split("."):
        module = getattr(module, name, ())
    return module
