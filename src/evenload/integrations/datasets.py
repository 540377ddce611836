"""``evenload.datasets.map``: a dataset of Hugging Face in, one out, every device used.

Tested with datasets 5.2.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from evenload._arguments import flag, instance_of, keywords, sequence, whole
from evenload._optional import require
from evenload.errors import ConfigError, UnknownName, quoted
from evenload.executor.executor import DeviceSpec, Executor
from evenload.executor.task.prepare import implementation, name_of
from evenload.integrations.built_function import executor_for

STORED = (
    "cache_file_name", "desc", "disable_nullable", "drop_last_batch", "features", "keep_in_memory",
    "load_from_cache_file", "new_fingerprint", "on_mixed_types", "try_original_type", "writer_batch_size",
)  # fmt: skip
STREAMED = ("drop_last_batch", "features")
INSTEAD = {
    "num_proc": 'devices="cpu*4" has four processes, and "all" one for each accelerator',
    "with_rank": "evenload.current_device() tells the function where it runs; a class may have device=",
    "suffix_template": "there is one cache file, whatever the number of devices",
}


def map(
    dataset: Any,
    function: Callable[..., Any] | type,
    *,
    batched: bool = True,
    batch_size: int | None = 1000,
    with_indices: bool = False,
    input_columns: str | Iterable[str] | None = None,
    remove_columns: str | Iterable[str] | None = None,
    fn_kwargs: Mapping[str, Any] | None = None,
    devices: DeviceSpec = "all",
    executor: Executor | None = None,
    retries: int = 0,
    timeout_s: float | None = None,
    **more: Any,
) -> Any:
    """Map a dataset over all devices as ``dataset.map(function, batched=True)`` would, to an equal dataset.

    dataset    a ``datasets.Dataset``, an ``IterableDataset``, or a dict of either
    function   called with a batch, a dict of lists; or a class, which is built once on each device
    batch_size rows in a batch; None, or less than 1: all of them
    batched    False: the function gets one row at a time, and workers some rows, at most ``batch_size``
    executor   one to use instead of one of its own on ``devices``; it stays open
    retries    so often a batch is tried again whose function raises
    timeout_s  a batch that runs longer fails, and its worker is replaced
    more       further arguments of ``Dataset.map`` (of a stream: ``features``, ``drop_last_batch``)
    A stored dataset is mapped at once; a result of the same function and arguments is taken from its cache
    file, which is where datasets puts it. A stream is mapped while it is read.
    Raises ConfigError for arguments that cannot be, TaskError for a batch that failed.
    """
    library: Any = require("datasets", why="evenload.datasets")
    from evenload.integrations.dataset_batches import Calling
    from evenload.integrations.dataset_job import DatasetJob

    is_dict = isinstance(dataset, library.DatasetDict | library.IterableDatasetDict)
    splits = dict(dataset) if is_dict else {"": dataset}
    is_stored = all(isinstance(one, library.Dataset) for one in splits.values())
    if not (is_stored or all(isinstance(one, library.IterableDataset) for one in splits.values())):
        hint = "give a datasets.Dataset, an IterableDataset, or a DatasetDict of them"
        raise ConfigError(f"{quoted(dataset)} is no dataset", hint=hint)
    _refuse_unknown(more, STORED if is_stored else STREAMED)
    if more.get("features") is not None:
        instance_of("features", more["features"], library.Features, "datasets.Features")
    columns = _columns("input_columns", input_columns, splits.values())
    removed = _columns("remove_columns", remove_columns, splits.values()) or ()
    more_of_it = dict(keywords("fn_kwargs", {} if fn_kwargs is None else fn_kwargs))
    how = Calling(flag("batched", batched), flag("with_indices", with_indices), columns, more_of_it)
    is_whole = batch_size is None or (type(batch_size) is int and batch_size <= 0)  # as Dataset.map has it
    size = 0 if is_whole else whole("batch_size", batch_size, least=1, most=None)
    opened = functools.partial(executor_for, executor, devices)
    options = {"retries": retries, "timeout_s": timeout_s, "stage": f"map {name_of(function)}"}
    more = {name: value for name, value in more.items() if value is not None}
    job = DatasetJob(function, implementation(function), how, size, removed, opened, options, more)
    mapped = job.stored(splits) if is_stored else {name: job.streamed(one) for name, one in splits.items()}
    return type(dataset)(mapped) if is_dict else mapped[""]


def _columns(what: str, given: Any, datasets: Iterable[Any]) -> tuple[str, ...] | None:
    """Names of columns that each dataset has, as far as a stream tells its columns."""
    if given is None:
        return None
    names = (given,) if isinstance(given, str) else sequence(what, given)
    if not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{what}={quoted(given)} are no names", hint="give names of columns")
    for known in (one.column_names for one in datasets):
        for name in names:
            if known is not None and name not in known:
                raise UnknownName("column", name, known)
    return names


def _refuse_unknown(more: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in more:
        if name in INSTEAD:
            raise ConfigError(f"{name} is not for evenload.datasets.map", hint=INSTEAD[name])
        if name not in known:
            raise UnknownName("argument", name, known)
