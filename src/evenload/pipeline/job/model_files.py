"""Check that a job's model folders are whole, by names, sizes, headers and JSON files; no weights are read.

A fault is found before the run starts, not when the last stage is loaded after hours.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from evenload._bounded_json import MAX_JSON_BYTES
from evenload._private_files import read_plain
from evenload.errors import FormatError
from evenload.pipeline.job.builtin_stages import BUILTIN_STAGES
from evenload.pipeline.model.model_size import find_model
from evenload.pipeline.model.safetensors_header import read_whole_header

if TYPE_CHECKING:
    from evenload.pipeline.job.spec import JobSpec, StageSpec

_INDEX = ".index.json"
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_MOST_JSON_BYTES = 2 << 20  # configs; what is larger is a tokenizer's vocabulary
_MOST_SHOWN = 10


def check_models(spec: "JobSpec", folder: Path) -> None:
    """Raise FormatError with every fault of every model folder, and the stages that need it."""
    users: dict[Path, list[StageSpec]] = {}
    for stage in spec.stages:
        found = find_model(stage.model.path, folder) if stage.model is not None else None
        if found is not None:
            users.setdefault(found, []).append(stage)
    lines = [
        f"{', '.join(stage.name for stage in stages)}: {fault}"
        for model, stages in users.items()
        for fault in faults_of_model(model, any(stage.kind in BUILTIN_STAGES for stage in stages))[
            :_MOST_SHOWN
        ]
    ]
    if lines:
        raise FormatError(
            "models cannot be loaded:" + "".join(f"\n  {line}" for line in lines),
            hint="download or copy them again; hf download NAME completes what is there",
        )


def faults_of_model(folder: Path, needs_weights: bool = True) -> list[str]:
    """List what is wrong with the files in ``folder``, one sentence each.

    ``needs_weights``: there must be weights in a format that diffusers and transformers read; a user's own
    stage may read others.
    """
    faults: list[str] = []
    files = [path for path in sorted(folder.rglob("*")) if not path.is_dir()]
    for path in files:
        try:
            _check(path)
        except FormatError as error:
            faults.append(error.message)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            faults.append(f"{path} is damaged: {getattr(error, 'strerror', None) or error}")
    if needs_weights and not any(path.suffix in _WEIGHTS for path in files):
        known = ", ".join(path.name for path in files[:5]) or "nothing"
        faults.append(f"{folder} holds no weights (it holds {known})")
    return faults


def _check(path: Path) -> None:
    """Raise FormatError, OSError or ValueError if ``path`` is not what its name says."""
    if path.suffix == ".safetensors":
        read_whole_header(path)
    elif path.name.endswith(_INDEX):
        parts = set(json.loads(read_plain(path, MAX_JSON_BYTES))["weight_map"].values())
        missing = sorted(name for name in parts if not (path.parent / str(name)).is_file())
        has_weights = any(one.suffix in _WEIGHTS for one in path.parent.iterdir())
        if missing and not (len(missing) == len(parts) and has_weights):  # else the index of another format
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            named = ", ".join(missing[:3]) + more
            raise FormatError(f"{path.parent} lacks {named}, of {len(parts)} parts that {path.name} names")
    elif path.suffix == ".json" and path.stat().st_size <= _MOST_JSON_BYTES:
        json.loads(read_plain(path, _MOST_JSON_BYTES))
