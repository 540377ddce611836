"""Read what an earlier run measured of a job's stages."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from evenload._private_files import read_plain
from evenload.errors import ConfigError, reason_of

MOST_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class StageHistory:
    """The times that an earlier run measured of one stage; None where it does not say.

    item_s  mean seconds for one item, on the devices that the run had
    load_s  mean seconds to load the model
    """

    item_s: float | None = None
    load_s: float | None = None


def read_history(run_folder: Path) -> dict[str, StageHistory]:
    """Read the summary of a run; returns its figures by stage. Raises ConfigError if there is no summary."""
    path = run_folder / "summary.json"
    try:
        summary = json.loads(read_plain(path, MOST_BYTES))
        stages = {stage["stage"]: stage for stage in summary["stages"]}
        loads = mean_load_s((summary.get("measured") or {}).get("load_s") or {})
        return {name: _of_stage(stage, loads.get(name)) for name, stage in stages.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path} says nothing of a run: {type(error).__name__}: {reason_of(error)}",
            hint="give the folder of a finished run",
        ) from error


def _of_stage(stage: Mapping[str, Any], load_s: float | None) -> StageHistory:
    n_items = stage.get("n_done", 0) + stage.get("n_failed", 0)
    busy_s = stage.get("busy_s") or 0.0
    return StageHistory(busy_s / n_items if n_items and busy_s > 0 else None, load_s)


def mean_load_s(load_s: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Average the seconds to load each stage's model over workers. ``load_s``: by worker, then by stage."""
    seconds: dict[str, list[float]] = {}
    for by_stage in load_s.values():
        for name, one_s in by_stage.items():
            seconds.setdefault(name, []).append(float(one_s))
    return {name: fmean(times) for name, times in seconds.items()}
