"""Load checkpoints of diffusers and transformers onto a stage's devices, or raise an error that says why not.

    pipeline = load_pipeline(context, parts=("transformer", "vae"))

Nothing is downloaded unless asked: a name such as ``Qwen/Qwen-Image-Edit`` is looked up among the downloads.
"""

import contextlib
import importlib
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from evenload._bounded_json import MAX_JSON_BYTES
from evenload._optional import require
from evenload._private_files import read_plain
from evenload.errors import ConfigError, FormatError, ResourceExhausted, quoted, reason_of
from evenload.pipeline.model.model_size import is_hub_name
from evenload.pipeline.model.safetensors_header import main_dtype, read_whole_header
from evenload.pipeline.stage import StageContext
from evenload.pipeline.stages.layers import n_bytes_of, place_layers, stream_layers

WHY = "stages of diffusers and transformers"
_WEIGHTS = ("*.safetensors", "*.bin")


def torch_on(context: StageContext, threads: int | None) -> Any:
    """Return torch, set up for this worker's device.

    On the CPU it computes with ``threads`` threads, as the last bits of sums depend on their number.
    Raises ConfigError if the worker is on the CPU and the CPU was not asked for.
    """
    torch = require("torch", extra="models", why=WHY)
    _be_quiet()
    if context.device.torch == "cpu":
        if not context.may_use_cpu:
            raise ConfigError(
                f"stage {quoted(context.stage)} landed on the CPU ({context.device.id}), "
                "where it would take hours",
                hint="say so if it is meant: devices: cpu, or --devices cpu; "
                "`evenload doctor` says why no GPU was found",
            )
        if threads is not None:
            torch.set_num_threads(threads)
    return torch


def _be_quiet() -> None:
    """Switch off progress bars: a worker's stderr is kept to be read later."""
    for library in ("diffusers", "transformers"):
        with contextlib.suppress(ImportError, AttributeError):
            importlib.import_module(f"{library}.utils.logging").disable_progress_bar()


def torch_dtype(torch: Any, name: str, folder: Path) -> Any:
    """Return the dtype called ``name``; "auto": that of the largest file of weights below ``folder``."""
    if name == "auto":
        files = sorted(folder.rglob("*.safetensors"), key=lambda file: file.stat().st_size)
        name = main_dtype(read_whole_header(files[-1]).values()) if files else "float32"
    dtype: Any = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ConfigError(f"dtype {quoted(name)} is none", hint="use auto, bfloat16, float16 or float32")
    return dtype


def _folder(context: StageContext, index: str, what: str, download: bool) -> Path:
    """Return the checkpoint's folder, local or among the hub's downloads, and check that it is whole."""
    if context.model is None:
        raise ConfigError(
            f"stage {quoted(context.stage)} has no model", hint="give it one: model: {path: ...}"
        )
    model = context.model.path
    folder = context.path(model)
    if folder.is_dir():
        if not (folder / index).is_file():
            known = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
            raise FormatError(
                f"{folder} is no {what}: it has no {index} (it holds {known})",
                hint="give the folder that save_pretrained wrote, or that was downloaded whole",
            )
        for file in folder.rglob("*.safetensors"):
            read_whole_header(file)
        return folder
    if is_hub_name(model):
        hub = require("huggingface_hub", extra="models", why=WHY)
        try:
            return Path(hub.snapshot_download(model, local_files_only=not download))
        except Exception as error:
            raise ConfigError(
                f"there is no folder {folder}, and {model} is not among the downloaded models "
                f"({type(error).__name__})",
                hint=f"download it first: hf download {model}",
            ) from error
    raise ConfigError(
        f"there is no folder {folder}", hint="correct model.path; it is relative to the job file"
    )


@contextlib.contextmanager
def _explained(what: str, folder: Path | str) -> Iterator[None]:
    """Turn what a library raises on a damaged checkpoint into one error that names the checkpoint."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (ConfigError, FormatError, MemoryError, ResourceExhausted):
        raise
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":
            raise
        first = (str(error).strip().splitlines() or [""])[0]
        raise FormatError(
            f"{what} in {folder} cannot be loaded: {type(error).__name__}: {first}",
            hint="is the folder whole, and does the installed version know this model?",
        ) from error


def load_pipeline(
    context: StageContext,
    *,
    parts: tuple[str, ...] | None = None,
    download: bool = False,
    threads: int | None = 1,
    auto_class: str = "DiffusionPipeline",
) -> Any:
    """Load a diffusers pipeline onto this worker's devices.

    parts       components that are loaded, the others are None; None: all
    auto_class  class of diffusers that reads the checkpoint
    The largest part is held as ``context.fit`` says.
    Raises FormatError if the folder is damaged, ConfigError if it is missing or not all weights are on the
    devices.
    """
    torch = torch_on(context, threads)
    diffusers = require("diffusers", extra="models", why=WHY)
    folder = _folder(context, "model_index.json", "diffusers pipeline", download)
    given, kept = _given_components(folder, parts)
    chosen = torch_dtype(torch, context.model_dtype, folder)
    if context.fit.name == "nf4":
        largest = max(kept, key=lambda name: _stored_bytes(folder / name))
        given["quantization_config"] = _four_bits(diffusers, largest, chosen)
    with _explained("the pipeline", folder):
        pipeline = getattr(diffusers, auto_class).from_pretrained(
            folder, torch_dtype=chosen, local_files_only=True, **given
        )
        pipeline.set_progress_bar_config(disable=True)
    _place(context, {name: part for name, part in pipeline.components.items() if hasattr(part, "parameters")})
    return pipeline


def _given_components(folder: Path, parts: tuple[str, ...] | None) -> tuple[dict[str, Any], list[str]]:
    """Return the components that diffusers is not to load, and the names of models that it is to load."""
    index = _index(folder)
    models = {name for name, home in index.items() if _is_model(home)}
    given: dict[str, Any] = {} if parts is None else dict.fromkeys(models - set(parts))
    if "processor" in index and "processor" not in given:
        given["processor"] = None
        if parts is None or "text_encoder" in parts:
            from evenload.pipeline.stages.processors import load_processor

            with _explained("the processor", folder):
                given["processor"] = load_processor(folder / "processor")
    return given, [name for name in models if name not in given]


def _stored_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for pattern in _WEIGHTS for file in folder.glob(pattern))


def _index(folder: Path) -> dict[str, Any]:
    try:
        index = json.loads(read_plain(folder / "model_index.json", MAX_JSON_BYTES))
        return {name: home for name, home in index.items() if not name.startswith("_")}
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise FormatError(
            f"{folder / 'model_index.json'} is damaged: {reason_of(error)}",
            hint="download or copy the model again",
        ) from error


def _is_model(home: Any) -> bool:
    """Return whether an entry of model_index.json names something with weights."""
    if not isinstance(home, list) or len(home) != 2 or home[1] is None:
        return False
    small = ("Tokenizer", "TokenizerFast", "Scheduler", "Processor", "FeatureExtractor")
    return not str(home[1]).endswith(small)


def _place(context: StageContext, modules: dict[str, Any]) -> None:
    """Move the parts to this worker's devices: the largest as ``context.fit`` says, the others whole."""
    largest = max(modules.values(), key=n_bytes_of, default=None)
    devices, fit = context.torch_devices, context.fit
    for name, part in modules.items():
        part.requires_grad_(False)
        if part is largest and fit.name == "resident_stream":
            stream_layers(part, devices[0], fit.resident_blocks or 0)
        elif part is largest and fit.name == "layer_split":
            place_layers(part, devices, fit.device2blocks)
        elif part is largest and fit.name == "fp8":
            _store_as_fp8(context, name, part)
        elif not (part is largest and fit.name == "nf4"):
            part.to(devices[0])
    if fit.name in ("whole", "layer_split"):
        _check_devices(context, modules)


def _store_as_fp8(context: StageContext, name: str, part: Any) -> None:
    """Store the weights in 8 bits, and compute in the dtype that they had."""
    import torch

    if not hasattr(part, "enable_layerwise_casting"):
        raise ConfigError(
            f"{name} of stage {quoted(context.stage)} is a {type(part).__name__}, "
            "which cannot be held as fp8",
            hint="take fp8 out of the stage's fit",
        )
    dtype = next(part.parameters()).dtype
    part.to(context.torch_devices[0])
    part.enable_layerwise_casting(storage_dtype=torch.float8_e4m3fn, compute_dtype=dtype)


def _four_bits(diffusers: Any, largest: str, dtype: Any) -> Any:
    """Return the configuration with which diffusers loads ``largest`` as nf4."""
    require("bitsandbytes", extra="gpu", why="fit nf4")
    kind = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": dtype}
    return diffusers.PipelineQuantizationConfig(
        quant_backend="bitsandbytes_4bit", quant_kwargs=kind, components_to_quantize=[largest]
    )


def _check_devices(context: StageContext, modules: dict[str, Any]) -> None:
    """Raise ConfigError if a part has weights on a kind of device that was not asked for."""
    wanted = {device.partition(":")[0] for device in context.torch_devices}
    for name, part in modules.items():
        found = {parameter.device.type for parameter in part.parameters()}
        if not found <= wanted:
            raise ConfigError(
                f"{name} of stage {quoted(context.stage)} landed on {', '.join(sorted(found))}, "
                f"not on {context.device.id}",
                hint="it would run at a crawl: free memory on the device, or let `evenload plan` choose",
            )


def load_model(
    context: StageContext,
    *,
    auto_class: str,
    download: bool = False,
    threads: int | None = 1,
) -> tuple[Any, Path]:
    """Load a transformers model onto this worker's devices, in evaluation mode; returns it and its folder.

    Raises as ``load_pipeline`` does.
    """
    torch = torch_on(context, threads)
    transformers = require("transformers", extra="models", why=WHY)
    folder = _folder(context, "config.json", "transformers model", download)
    with _explained("the model", folder):
        loaded = getattr(transformers, auto_class).from_pretrained(
            folder, dtype=torch_dtype(torch, context.model_dtype, folder), local_files_only=True
        )
    loaded.requires_grad_(False)
    loaded.eval()
    if context.fit.name == "nf4":
        raise ConfigError(
            f"stage {quoted(context.stage)} cannot be held as nf4: only parts of diffusers pipelines can",
            hint="take nf4 out of the stage's fit",
        )
    _place(context, {"the model": loaded})
    return loaded, folder


def settings_of(context: StageContext) -> dict[str, Any]:
    """Read the settings in evenload.json of the model's folder; {} where there is none."""
    if context.model is None:
        return {}
    try:
        path = context.path(context.model.path) / "evenload.json"
        settings = json.loads(read_plain(path, MAX_JSON_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return settings if isinstance(settings, dict) else {}


def _copy_pipeline(pipeline: Any) -> Any:
    """Return the pipeline for one more item at the same time: weights shared, parts with state copied.

    A scheduler counts its steps, and some VAEs keep features from one call to the next: two items that share
    them would silently spoil each other's pictures.
    """
    import copy

    parts = dict(pipeline.components)
    for name in ("scheduler", "vae", "processor", "tokenizer", "image_processor"):
        if parts.get(name) is not None:
            parts[name] = copy.deepcopy(parts[name])
    lane = type(pipeline)(**parts)
    lane.set_progress_bar_config(disable=True)
    return lane


class PipelineStage:
    """A stage with a diffusers pipeline, from which lanes for more items at the same time are made."""

    _pipe: Any

    def lane(self) -> Self:
        """Return a copy of the stage for another item at the same time."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._pipe = _copy_pipeline(self._pipe)
        return twin
