"""Load checkpoints of diffusers and transformers onto a stage's devices, or raise an error that says why not.

    pipeline = load_pipeline(context, parts=("transformer", "vae"))

Nothing is downloaded unless asked: a name such as ``Qwen/Qwen-Image-Edit`` is looked up among the downloads.
"""

import contextlib
import functools
import importlib
import itertools
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from evenload._optional import is_installed, require
from evenload.errors import ConfigError, FormatError, ResourceExhausted, quoted
from evenload.pipeline.model.model_size import is_hub_name, read_config
from evenload.pipeline.model.parameter_counts import largest_block_list
from evenload.pipeline.model.safetensors_header import main_dtype, read_whole_header
from evenload.pipeline.stage import StageContext


@functools.cache
def pil_processor_class() -> type:
    """Return the class of a Qwen2-VL processor with an image processor and a tokenizer alone.

    The library's own also wants a video processor, which cannot be imported without torchvision.
    """
    from transformers import Qwen2VLProcessor
    from transformers.processing_utils import ProcessorMixin

    class PilQwenVLProcessor(Qwen2VLProcessor):
        @classmethod
        def get_attributes(cls) -> list[str]:
            return ["image_processor", "tokenizer"]

        def __init__(
            self, image_processor: Any = None, tokenizer: Any = None, chat_template: Any = None, **_: Any
        ):
            self.image_token, self.video_token = "<|image_pad|>", "<|video_pad|>"
            self.image_token_id = tokenizer.convert_tokens_to_ids(self.image_token)
            self.video_token_id = tokenizer.convert_tokens_to_ids(self.video_token)
            ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)

    return PilQwenVLProcessor


def load_processor(folder: Path) -> Any:
    """Load the processor saved in ``folder``."""
    if is_installed("torchvision"):
        from transformers import AutoProcessor

        return AutoProcessor.from_pretrained(folder, local_files_only=True)
    return pil_processor_class().from_pretrained(folder, local_files_only=True)  # pyrefly: ignore


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
    named = read_config(folder / "model_index.json")
    index = {name: home for name, home in named.items() if not name.startswith("_")}
    models = {name for name, home in index.items() if _is_model(home)}
    given: dict[str, Any] = {} if parts is None else dict.fromkeys(models - set(parts))
    if "processor" in index and "processor" not in given:
        given["processor"] = None
        if parts is None or "text_encoder" in parts:
            with _explained("the processor", folder):
                given["processor"] = load_processor(folder / "processor")
    return given, [name for name in models if name not in given]


def _stored_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for pattern in _WEIGHTS for file in folder.glob(pattern))


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
    context: StageContext, *, auto_class: str, download: bool = False, threads: int | None = 1
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
        return read_config(context.path(context.model.path) / "evenload.json")
    except FormatError:
        return {}


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


# --- layers spread over devices, by hooks -------------------------------------------------------------
# A block's inputs are moved to its device. The hooks keep nothing between calls, so that several items may be
# in the same model at once, each in another part of it.


def blocks_of(module: Any) -> Any:
    """Return the list of blocks that holds most of the weights. Raises ConfigError if there is none."""
    blocks = largest_block_list(module, n_bytes_of)
    if blocks is None:
        raise ConfigError(
            f"{type(module).__name__} has no list of blocks to split", hint="run it whole, on one device"
        )
    return blocks


def place_layers(module: Any, devices: Sequence[str], counts: Sequence[int] = ()) -> None:
    """Spread the blocks of ``module`` over ``devices``, the rest on the first.

    ``counts``: blocks on each device; by default as equal as they can be. The module's outputs are moved
    back to the first device. Equal names among ``devices`` are one device. Raises ConfigError if ``counts``
    do not fit.
    """
    import torch

    blocks, n = blocks_of(module), len(devices)
    counts = counts or [len(blocks) * (at + 1) // n - len(blocks) * at // n for at in range(n)]
    if sum(counts) != len(blocks) or len(counts) != n:
        raise ConfigError(
            f"{'+'.join(map(str, counts))} blocks over {n} devices, but "
            f"{type(module).__name__} has {len(blocks)}",
            hint="plan again: the model is another than the one that was planned",
        )
    _move_all_but(blocks, module, devices[0])
    places = [device for device, n in zip(devices, counts, strict=True) for _ in range(n)]
    for block, device in zip(blocks, places, strict=True):
        block.to(device)
        block.register_forward_pre_hook(_bring(torch.device(device)), with_kwargs=True, prepend=True)
    _bring_back(blocks, module, torch.device(devices[0]))


def _move_all_but(blocks: Iterable[Any], module: Any, device: Any) -> None:
    """Move the weights of ``module`` that are in none of ``blocks``."""
    inside = {id(tensor) for block in blocks for tensor in _tensors_of(block)}
    for part in module.modules():
        for tensor in itertools.chain(part._parameters.values(), part._buffers.values()):
            if tensor is not None and id(tensor) not in inside:
                tensor.data = tensor.data.to(device)


def _bring_back(blocks: Any, module: Any, device: Any) -> None:
    """Have all that comes after the last block get its inputs on ``device``."""
    inside = {id(part) for part in blocks.modules()}
    around = {id(part) for part in module.modules() if any(child is blocks for child in part.modules())}
    for part in module.modules():
        if id(part) not in inside and id(part) not in around and not list(part.children()):
            part.register_forward_pre_hook(_bring(device), with_kwargs=True, prepend=True)
    blocks[-1].register_forward_hook(lambda _module, _inputs, outputs: _moved(outputs, device))


def _bring(device: Any) -> Any:
    """Return a hook that moves a module's inputs to ``device``."""

    def hook(_module: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        return _moved(args, device), _moved(kwargs, device)

    return hook


def _moved(value: Any, device: Any) -> Any:
    """Return ``value`` with every tensor on ``device``; a tensor that is moved often is copied once."""
    import torch

    if isinstance(value, torch.Tensor):
        if value.device == device:
            return value
        copies: dict = vars(value).setdefault("_evenload_copies", {})  # pyrefly: ignore
        if device not in copies or copies[device][0] != value._version:
            copies[device] = (value._version, value.to(device, non_blocking=True))
        return copies[device][1]
    if isinstance(value, tuple | list):
        moved = [_moved(one, device) for one in value]
        return type(value)(*moved) if hasattr(value, "_fields") else type(value)(moved)
    if isinstance(value, dict):
        return type(value)((name, _moved(one, device)) for name, one in value.items())
    return value


def stream_layers(module: Any, device: str, n_resident: int) -> None:
    """Keep ``n_resident`` blocks of ``module`` and all else on ``device``; copy other blocks when they run.

    The weights of those stay in host memory, pinned if the device is a GPU. One item at a time.
    """
    import torch

    blocks = blocks_of(module)
    streamed = list(blocks)[max(0, n_resident) :]
    target = torch.device(device)
    _move_all_but(streamed, module, target)
    for block in streamed:
        home = {tensor: _pinned(tensor.data, target) for tensor in _tensors_of(block)}
        block.register_forward_pre_hook(_fetch(home, target), prepend=True)
        block.register_forward_hook(_drop(home), always_call=True)


def _pinned(tensor: Any, device: Any) -> Any:
    return tensor.cpu().pin_memory() if device.type == "cuda" else tensor.cpu()


def _fetch(home: dict[Any, Any], device: Any) -> Any:
    def hook(_module: Any, _inputs: Any) -> None:
        for tensor, kept in home.items():
            tensor.data = kept.to(device, non_blocking=True)

    return hook


def _drop(home: dict[Any, Any]) -> Any:
    def hook(_module: Any, _inputs: Any, _outputs: Any) -> None:
        for tensor, kept in home.items():
            tensor.data = kept

    return hook


def _tensors_of(module: Any) -> list[Any]:
    return [*module.parameters(), *module.buffers()]


def n_bytes_of(module: Any) -> int:
    """Return the bytes of a module's parameters."""
    return sum(tensor.numel() * tensor.element_size() for tensor in module.parameters())
