"""``Trace``: the experts that tokens chose in a run, read from the files that engines and people write.

file or folder ──► read_trace ──► Trace ──► windows of loads [windows, layers, experts]
"""

import functools
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TextIO

import numpy as np
from numpy.typing import NDArray

from evenload._arguments import choice, folder, whole
from evenload._optional import require
from evenload._private_files import plain_file
from evenload.errors import ConfigError, FormatError, quoted, reason_of

Kind = Literal["ids", "counts"]
ID_KEYS = ("experts", "topk_ids", "ids")  # [layers, tokens, top-k]
TOKEN_KEYS = ("routed_experts",)  # [tokens, layers, top-k]
MOST_EXPERTS = 1 << 20  # of a layer, unless the caller says how many there are
MOST_ROUNDED = 0.01  # of all tokens: means of counts are as good as counts
COUNT_KEYS = ("counts", "logical_count", "logical_expert_load", "expert_load")  # [steps, layers, experts]
SLOT_KEYS = ("expert_load_window", "global_physical_count", "physical_count")  # [steps, layers, slots]
MAP_KEYS = ("physical_to_logical_map", "last_physical_to_logical_map", "phy2log")  # [layers, slots]


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """The experts that tokens chose in one run of a model.

    counts  [steps, layers, experts] int64 tokens that chose each expert in each step of the file
    ids     [layers, tokens, top-k] the experts that each token chose, if the file has them instead
    note    what should be known before anything is planned by it
    """

    name: str
    n_experts: int
    counts: NDArray[np.int64] | None = None
    ids: NDArray[np.integer] | None = None
    note: str | None = None

    @property
    def n_layers(self) -> int:
        return len(self.ids) if self.ids is not None else self._steps().shape[1]

    @property
    def n_steps(self) -> int:
        """Tokens if there are ids, otherwise steps."""
        return self.ids.shape[1] if self.ids is not None else len(self._steps())

    def windows(self, size: int) -> NDArray[np.int64]:
        """[windows, layers, experts] loads of consecutive whole windows of ``size`` tokens (or steps).

        Raises ConfigError if the trace is shorter than one window.
        """
        if size < 1 or self.n_steps < size:
            what = "tokens" if self.ids is not None else "steps"
            raise ConfigError(
                f"{self.name} has {self.n_steps} {what}, no window of {size}",
                hint=f"use windows of 1 to {self.n_steps}",
            )
        n_windows = self.n_steps // size
        if self.ids is not None:
            return count_ids(self.ids[:, : n_windows * size], n_windows, self.n_experts)
        steps = self._steps()[: n_windows * size]
        return steps.reshape(n_windows, size, *steps.shape[1:]).sum(axis=1)

    def _steps(self) -> NDArray[np.int64]:
        assert self.counts is not None, "a trace has ids or counts"
        return self.counts


def count_ids(ids: NDArray[np.integer], n_windows: int, n_experts: int) -> NDArray[np.int64]:
    """[windows, layers, experts] counts of ``ids`` [layers, tokens, top-k] in equal windows; -1 is no id."""
    n_layers = len(ids)
    keys = ids.reshape(n_layers, n_windows, -1).astype(np.int64)
    place = np.arange(n_windows)[None, :, None] * n_layers + np.arange(n_layers)[:, None, None]
    keys = np.where(keys >= 0, keys + place * n_experts, -1).reshape(-1)
    return np.bincount(keys[keys >= 0], minlength=n_windows * n_layers * n_experts).reshape(
        n_windows, n_layers, n_experts
    )


def read_trace(
    path: str | Path, *, n_experts: int | None = None, kind: Kind | None = None, is_growing: bool = False
) -> Trace:
    """Read a routing trace; the suffix and the keys of the file say of which kind.

    .npz    ``experts``, ``topk_ids`` or ``ids`` [layers, tokens, top-k]; ``routed_experts``
            [tokens, layers, top-k]; ``counts``, ``logical_count`` or ``expert_load`` [steps, layers, experts]
    .npy    one such array. ``kind`` says "ids" or "counts"; without it, short last axes of different numbers
            are ids
    .jsonl  a step a line: [layers][experts] counts, alone or under one of the keys above
    .json   a list of steps, or an object with one, such as ``load_history`` (vLLM) or ``logical_count``
            (SGLang)
    .pt     SGLang's recorder dumps (``stat``, ``per_pass``, ``per_token``), or vLLM's
            ``expert_load_window``: loads of physical slots are summed over ``physical_to_logical_map``
    folder  of .pt dumps, one from each rank, which are added up

    n_experts   by default one more than the largest id, for ids
    is_growing  leave out the last line of a .jsonl file if only a part of it is there

    Raises ConfigError if there is no such file or its kind is not known, FormatError if it is damaged, an id
    or a count is negative or out of range, or shapes differ; MissingExtra for .pt without torch.
    """
    path = Path(folder("path", path))
    if kind is not None:
        choice("kind", kind, ("ids", "counts"))
    if n_experts is not None:
        n_experts = whole("n_experts", n_experts, least=1, most=None)
    if not _is_there(path):
        raise ConfigError(
            f"no trace at {quoted(str(path), 200)}",
            hint="give a .npz, .npy, .jsonl, .json or .pt file, or a folder of .pt",
        )
    if path.is_dir():
        return _read_dumps(sorted(path.glob("*.pt")), path, n_experts)
    readers: Mapping[str, Callable[..., Trace]] = {
        ".npz": _read_arrays, ".npy": _read_arrays, ".json": _read_json,
        ".jsonl": functools.partial(_read_jsonl, is_growing=is_growing),
    }  # fmt: skip
    if path.suffix == ".pt":
        return _read_dumps([path], path, n_experts)
    if path.suffix not in readers:
        raise ConfigError(f"{path.name}: unknown kind of trace", hint="use .npz, .npy, .jsonl, .json or .pt")
    return readers[path.suffix](path, n_experts, kind)


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that is too long
        return False


def _array(path: Path, values: Any) -> NDArray:
    try:
        return np.asarray(values)
    except ValueError as error:
        raise FormatError(f"{path.name}: rows of different lengths") from error


def _of_ids(path: Path, ids: Any, n_experts: int | None) -> Trace:
    ids = _array(path, ids)
    if ids.ndim != 3 or not ids.size or ids.dtype.kind not in "iu":
        raise FormatError(
            f"{path.name}: ids of shape {ids.shape} and dtype {ids.dtype}",
            hint="give whole [layers, tokens, top-k]",
        )
    most = int(ids.max())
    if int(ids.min()) < -1 or most < 0 or most >= (n_experts or MOST_EXPERTS):
        raise FormatError(
            f"{path.name}: ids from {ids.min()} to {most}",
            hint="ids count from 0; -1 is no expert; raise n_experts=",
        )
    return Trace(path.stem, n_experts or most + 1, ids=ids)


def _counts(path: Path, values: Any) -> NDArray:
    """[steps, layers, experts or slots] numbers from 0 to 2**53."""
    counts = _array(path, values)
    counts = counts[None] if counts.ndim == 2 else counts
    if counts.ndim != 3 or not counts.size or counts.dtype.kind not in "iuf":
        raise FormatError(
            f"{path.name}: counts of shape {counts.shape} and dtype {counts.dtype}",
            hint="give numbers [steps, layers, experts]",
        )
    if not (counts.min() >= 0 and counts.max() < 2**53):
        raise FormatError(
            f"{path.name}: counts from {counts.min()} to {counts.max()}", hint="give counts from 0 to 2**53"
        )
    return counts


def _of_counts(path: Path, values: Any, n_experts: int | None) -> Trace:
    counts = _counts(path, values)
    if n_experts not in (None, counts.shape[2]):
        raise ConfigError(
            f"{path.name} has {counts.shape[2]} experts, not {n_experts}", hint="leave n_experts out"
        )
    whole = np.rint(counts)
    if np.abs(counts - whole).sum() > MOST_ROUNDED * counts.sum():
        raise FormatError(
            f"{path.name}: counts with fractions, from {counts.min()} to {counts.max()}",
            hint="give numbers of tokens, not shares of them",
        )
    return Trace(path.stem, counts.shape[2], counts=whole.astype(np.int64))


def _load(path: Path) -> dict[str, NDArray]:
    """The arrays of a file; that of an .npy file has no name."""
    try:
        with plain_file(path) as file:
            held = np.load(file, allow_pickle=False)
            return {"": held} if isinstance(held, np.ndarray) else {name: held[name] for name in held.files}
    except Exception as error:  # numpy, zipfile and zlib have many kinds; all mean that it is damaged
        raise FormatError(f"{path.name} is no readable {path.suffix[1:]} file: {reason_of(error)}") from error


def _read_arrays(path: Path, n_experts: int | None, kind: Kind | None) -> Trace:
    arrays = _load(path)
    if "" not in arrays:
        return _of_mapping(path, arrays, n_experts)
    array = arrays[""]
    if kind is None:
        kind = "ids" if _look_like_ids(array) else "counts"
    return _of_ids(path, array, n_experts) if kind == "ids" else _of_counts(path, array, n_experts)


def _look_like_ids(array: NDArray) -> bool:
    """Whether the last axis has at most 16 entries, all different, as a token's experts are."""
    if array.ndim != 3 or array.dtype.kind not in "iu" or not 1 <= array.shape[2] <= 16:
        return False
    rows = np.sort(array[:, :1000].reshape(-1, array.shape[2]), axis=1)
    return not (np.diff(rows.astype(np.int64), axis=1) == 0).any()


def _read_jsonl(path: Path, n_experts: int | None, kind: Kind | None, *, is_growing: bool) -> Trace:
    steps: list[Any] = []
    with _text(path) as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                step = json.loads(line)
            except (ValueError, RecursionError) as error:
                if is_growing and not line.endswith("\n"):
                    break
                said = getattr(error, "msg", str(error))
                raise FormatError(f"{path.name}, line {number}: {said}") from error
            steps.append(_one_step(path, step, f"line {number}"))
    return _of_counts(path, _stack(path, steps), n_experts)


def _text(path: Path, errors: str = "replace") -> TextIO:
    try:
        return io.TextIOWrapper(plain_file(path), encoding="utf-8", errors=errors)
    except OSError as error:
        raise FormatError(f"{path.name} cannot be read: {error.strerror}") from error


def _read_json(path: Path, n_experts: int | None, kind: Kind | None) -> Trace:
    try:
        with _text(path, "strict") as file:
            page = json.loads(file.read())
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path.name} is no JSON: {error}") from error
    if isinstance(page, dict) and "load_history" in page:
        page = page["load_history"]
    if isinstance(page, dict):
        return _of_mapping(path, page, n_experts)
    if not isinstance(page, list):
        raise FormatError(f"{path.name} holds neither steps nor an object with them")
    return _of_counts(
        path, _stack(path, [_one_step(path, step, f"step {i}") for i, step in enumerate(page)]), n_experts
    )


def _one_step(path: Path, step: Any, where: str) -> NDArray:
    if isinstance(step, dict):
        key = next((key for key in COUNT_KEYS if key in step), None)
        if key is None:
            raise FormatError(
                f"{path.name}, {where}: none of {', '.join(COUNT_KEYS)}", hint="name the counts of a step so"
            )
        step = step[key]
    try:
        array = np.asarray(step, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        what = "a count of 2**1024 or more" if isinstance(error, OverflowError) else "no rectangle of numbers"
        raise FormatError(f"{path.name}, {where}: {what}", hint="give counts below 2**53") from error
    if array.ndim != 2:
        raise FormatError(f"{path.name}, {where}: shape {array.shape}", hint="give [layers][experts]")
    return array


def _stack(path: Path, steps: list[NDArray]) -> NDArray:
    if not steps:
        raise FormatError(f"{path.name} holds no step")
    odd = next((i for i, step in enumerate(steps) if step.shape != steps[0].shape), None)
    if odd is not None:
        raise FormatError(f"{path.name}: step {odd} has shape {steps[odd].shape}, the first {steps[0].shape}")
    return np.stack(steps)


def _of_mapping(path: Path, arrays: Mapping[str, Any], n_experts: int | None) -> Trace:
    """The trace under the first of the known keys."""
    known = (*ID_KEYS, *TOKEN_KEYS, *COUNT_KEYS, *SLOT_KEYS)
    key = next((key for key in known if key in arrays), None)
    if key is None:
        has = ", ".join(sorted(map(str, arrays))) or "nothing"
        raise FormatError(f"{path.name} has {has}", hint=f"name the array {', '.join(known)}")
    if key in ID_KEYS:
        return _of_ids(path, arrays[key], n_experts)
    if key in TOKEN_KEYS:
        ids = _array(path, arrays[key])
        return _of_ids(path, ids.swapaxes(0, 1) if ids.ndim == 3 else ids, n_experts)
    if key in COUNT_KEYS:
        return _of_counts(path, arrays[key], n_experts)
    return _of_counts(path, _by_expert(path, arrays[key], arrays, n_experts), None)


def _by_expert(path: Path, loads: Any, arrays: Mapping[str, Any], n_experts: int | None) -> NDArray[np.int64]:
    """Loads of physical slots [steps, layers, slots], summed over the slots of each expert."""
    key = next((key for key in MAP_KEYS if key in arrays), None)
    if key is None:
        raise FormatError(f"{path.name} has loads of slots but no map to experts", hint=f"add {MAP_KEYS[0]}")
    loads, phy2log = _counts(path, loads), _array(path, arrays[key])
    if loads.shape[1:] != phy2log.shape or phy2log.dtype.kind not in "iu":
        raise FormatError(
            f"{path.name}: loads of shape {loads.shape}, a map of {phy2log.shape} and dtype {phy2log.dtype}",
            hint="give whole [layers, slots]",
        )
    if phy2log.min() < -1 or phy2log.max() >= (n_experts or MOST_EXPERTS):
        raise FormatError(f"{path.name}: the map names experts {phy2log.min()} to {phy2log.max()}")
    n_experts = n_experts or int(phy2log.max()) + 1
    counts = np.zeros((*loads.shape[:2], n_experts + 1), np.int64)
    for layer in range(loads.shape[1]):
        np.add.at(counts[:, layer].T, phy2log[layer], np.rint(loads[:, layer]).astype(np.int64).T)
    return counts[:, :, :n_experts]


def _read_dumps(paths: list[Path], source: Path, n_experts: int | None) -> Trace:
    """The trace of one run's dumps: ``stat`` files are whole, other records add up over ranks."""
    torch = require("torch", extra="moe", why="reading .pt dumps")
    if not paths:
        raise ConfigError(
            f"no .pt file in {quoted(str(source), 200)}", hint="give the folder that the recorder wrote to"
        )
    passes: dict[int, NDArray[np.int64]] = {}
    traces: list[Trace] = []
    for path in paths:
        try:
            with plain_file(path) as file:
                pack = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:
            # torch raises many kinds of errors from its unpickler; all mean that the file is damaged.
            raise FormatError(f"{path.name} is no readable .pt file: {reason_of(error)}") from error
        if not isinstance(pack, dict):
            raise FormatError(f"{path.name} holds a {type(pack).__name__}, not a recorder's dump")
        if "records" not in pack:
            traces.append(_of_mapping(path, pack, n_experts))
            continue
        try:
            for record in pack["records"]:
                merged = {**{key: pack[key] for key in MAP_KEYS if key in pack}, **record}
                counts = _by_expert(path, record["global_physical_count"], merged, n_experts)[0]
                step = int(record["forward_pass_id"])
                passes[step] = passes.get(step, 0) + counts
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise FormatError(f"{path.name} has a record that is none: {quoted(error)}") from error
    if passes:
        traces.append(_of_counts(source, np.stack([passes[step] for step in sorted(passes)]), n_experts))
    if len(traces) != 1:
        counts = np.concatenate([trace.windows(1) for trace in traces])
        return _of_counts(source, counts, n_experts)
    if passes and len(paths) == 1:
        note = f"{source.name} has one rank's counts; give the folder of all ranks' dumps to plan for all"
        return replace(traces[0], note=note)
    return traces[0]
