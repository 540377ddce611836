"""``evenload.frames.map``: a function over the rows, values or groups of a frame, on every device.

Tested with pandas 3.1 and polars 2.1. The frame's own method is called in the end, with a function that looks
results up: index, columns and dtypes of what it gives are the library's.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from evenload.errors import ConfigError, quoted
from evenload.executor.executor import DeviceSpec, Executor
from evenload.executor.task.hybrid import Implementation
from evenload.executor.task.prepare import implementation, name_of, named
from evenload.integrations.built_function import BuiltFunction, executor_for

Run = Callable[..., Iterator[Any]]
Further = tuple[tuple[Any, ...], dict[str, Any]]
OF_APPLY, OF_MAP = ("raw", "result_type", "by_row"), ("na_action",)
MOST_ROWS, FEW_ROWS = 128, 4096  # rows in a call; with fewer in all each has a call of its own


def map(
    frame: Any,
    function: Callable[[Any], Any] | type,
    *,
    by: Any = None,
    devices: DeviceSpec = "all",
    executor: Executor | None = None,
    retries: int = 0,
    timeout_s: float | None = None,
    **options: Any,
) -> Any:
    """Map the rows or groups of a frame, or the values of a series, over all devices.

    frame      of pandas or polars
    function   gets what it gets from the frame's own method, or is a class that is built once on each device
    by         None, or what to group by, as in ``groupby``
    executor   one to use instead of one of its own on ``devices``; it stays open
    retries    so often a row or group is tried again
    timeout_s  a row or group that takes longer fails, and its worker is replaced
    options    of the frame's own method, with further arguments of the function where pandas takes them
               (``args=(3,)``, ``unit="kg"``), or of ``groupby`` of pandas
    Returns what the frame's own method returns: ``apply(function, axis=1)``, ``groupby(by).apply`` and
    ``Series.map`` of pandas; ``map_rows``, ``group_by(by, maintain_order=True).map_groups`` and
    ``map_elements`` of polars. Raises ConfigError for anything else, and TaskError if the function raises.
    """
    mapped = _way_of(frame, by)
    given = {"retries": retries, "timeout_s": timeout_s, "stage": f"map {name_of(function)}"}
    with executor_for(executor, devices) as used:

        def run(task: Any, items: Iterable[Any], **more: Any) -> Iterator[Any]:
            return iter(used.map(task, items, **given, **more))

        return mapped(frame, function, by, options, run)


def _way_of(frame: Any, by: Any) -> Callable[..., Any]:
    """The function below for this kind of frame. Raises ConfigError if there is none."""
    library = type(frame).__module__.partition(".")[0]
    kinds: dict[tuple[str, str], Callable[..., Any]] = {
        ("pandas", "DataFrame"): _pandas_frame if by is None else _pandas_groups,
        ("pandas", "Series"): _pandas_series if by is None else _pandas_groups,
        ("polars", "DataFrame"): _polars_frame if by is None else _polars_groups,
        ("polars", "Series"): _polars_series,
    }
    names = [one.__name__ for one in type(frame).__mro__]
    mapped = next((kinds[library, name] for name in names if (library, name) in kinds), None)
    if mapped is None or (by is not None and mapped is _polars_series):
        hint = "collect() it first" if "LazyFrame" in names else "give a frame, or a series without groups"
        raise ConfigError(f"{quoted(frame)} cannot be mapped", hint=hint)
    return mapped


class _Rows(BuiltFunction):
    """A function over rows of a frame that the worker has, by their numbers; pandas makes the rows."""

    def __init__(self, built: Implementation, further: "Further", frame: Any, raw: bool, *, device: Any):
        super().__init__(built, device)
        self._further, self._frame, self._raw = further, frame, raw

    def __call__(self, places: Sequence[int]) -> list[Any]:
        found: list[Any] = []

        def note(row: Any) -> None:
            args, kwargs = self._further
            value = self._function(row, *args, **kwargs)
            is_row_like = isinstance(
                value, type(row)
            )  # it may be the row, which is the same object each time
            found.append(copy.copy(value) if is_row_like else value)

        self._frame.iloc[places].apply(note, axis=1, raw=self._raw)
        return found


class _Values(BuiltFunction):
    """A function over single values, with further arguments."""

    def __init__(self, built: Implementation, further: "Further", *, device: Any):
        super().__init__(built, device)
        self._further = further

    def __call__(self, value: Any) -> Any:
        args, kwargs = self._further
        return self._function(value, *args, **kwargs)


class _Groups(BuiltFunction):
    """A function over groups of a frame, each with its name, as pandas gives it."""

    def __init__(self, built: Implementation, *, device: Any):
        super().__init__(built, device)

    def __call__(self, item: tuple[Any, Any]) -> Any:
        name, group = item
        object.__setattr__(group, "name", name)
        return self._function(group)


def _pandas_frame(frame: Any, function: Any, by: None, options: dict[str, Any], run: Run) -> Any:
    if "axis" in options:
        raise ConfigError("rows are mapped, whatever axis", hint="transpose the frame first")
    own, further = _further(options, OF_APPLY)
    name, built = name_of(function), implementation(function)
    if not all(frame.shape):  # pandas asks the function about no values
        task = named(name, _Values, built, further)
        return frame.apply(lambda row: next(run(task, [row])), axis=1, **own)
    task = named(name, _Rows, built, further, frame, bool(own.get("raw")))
    results = run(task, range(len(frame)), batch=min(MOST_ROWS, 1 + len(frame) // FEW_ROWS))
    return frame.apply(lambda _: next(results), axis=1, **own)


def _pandas_groups(frame: Any, function: Any, by: Any, options: dict[str, Any], run: Run) -> Any:
    groups: list[tuple[Any, Any]] = []
    frame.groupby(by, **options).apply(lambda group: groups.append((group.name, group)))
    task = named(name_of(function), _Groups, implementation(function))
    results = run(task, groups, cost=[float(len(group)) for _, group in groups])
    return frame.groupby(by, **options).apply(lambda _: next(results))


def _pandas_series(series: Any, function: Any, by: None, options: dict[str, Any], run: Run) -> Any:
    values: list[Any] = []
    own, further = _further(options, OF_MAP)
    series.map(values.append, **own)
    results = run(named(name_of(function), _Values, implementation(function), further), values)
    return series.map(lambda _: _same_nan(next(results)), **own)


def _further(options: dict[str, Any], own: tuple[str, ...]) -> tuple[dict[str, Any], Further]:
    """``options`` as pandas divides them: those of its method, and further arguments of the function."""
    for name in ("engine", "engine_kwargs"):
        if options.get(name) not in (None, "python"):
            hint = "leave it out: the function runs in the workers, which a compiler cannot see"
            raise ConfigError(f"{name}={quoted(options[name])} is not for evenload.frames.map", hint=hint)
    kwargs = {name: value for name, value in options.items() if name not in (*own, "engine", "engine_kwargs")}
    args = tuple(kwargs.pop("args", ())) if own is OF_APPLY else ()
    return {name: options[name] for name in own if name in options}, (args, kwargs)


def _same_nan(value: Any) -> Any:
    """``value``; of floats that are none the one that pandas looks for by identity."""
    from numpy import nan

    return nan if type(value) is float and value != value else value


def _polars_frame(frame: Any, function: Any, by: None, options: dict[str, Any], run: Run) -> Any:
    import polars

    rows: list[Any] = []
    frame.map_rows(lambda row: rows.append(row) or 0, return_dtype=polars.Int64)
    results = run(function, rows)
    return frame.map_rows(lambda _: next(results), **options)


def _polars_groups(frame: Any, function: Any, by: Any, options: dict[str, Any], run: Run) -> Any:
    groups = [group for _, group in frame.group_by(by, maintain_order=True)]
    results = run(function, groups, cost=[float(len(group)) for group in groups])
    return frame.group_by(by, maintain_order=True).map_groups(lambda _: next(results), **options)


def _polars_series(series: Any, function: Any, by: None, options: dict[str, Any], run: Run) -> Any:
    import polars

    if isinstance(series.dtype, polars.Array):
        raise ConfigError(
            f"a series of {series.dtype} cannot be mapped: polars gives functions an object of its insides",
            hint=f"cast it first: series.cast(polars.{polars.List(series.dtype.inner)})",
        )
    values: list[Any] = []
    skips = {"skip_nulls": options.get("skip_nulls", True)}
    series.map_elements(lambda value: values.append(value) or 0, return_dtype=polars.Int64, **skips)
    results = run(function, values)
    return series.map_elements(lambda _: next(results), **options)
