"""The stages that ship with evenload, by the ``kind`` that a job file names. A table of strings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evenload.errors import UnknownName


@dataclass(frozen=True, slots=True)
class BuiltinStage:
    """A stage that ships with evenload.

    target      module:Class
    components  parts of the model folder that the stage loads; () for all
    outputs     names of what it returns; None where its ``params`` decide
    reads       names of values that it always takes
    columns     its ``params`` that name values it takes, with their defaults
    templates   its ``params`` in which ``{name}`` stands for a value, with the names in their defaults
    code        its ``params`` that name a class or function
    manners     its ``params`` that change no result
    imports     modules that it imports as it is loaded, and that take long
    """

    target: str
    needs_model: bool = True
    components: tuple[str, ...] = ()
    outputs: tuple[str, ...] | None = None
    reads: tuple[str, ...] = ()
    columns: Mapping[str, Any] = field(default_factory=dict)
    templates: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    code: tuple[str, ...] = ()
    manners: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()


_STAGES = "evenload.pipeline.stages"
_TRANSFORMERS = ("torch", "transformers.modeling_utils")
_DIFFUSERS = (*_TRANSFORMERS, "diffusers.pipelines.pipeline_utils")
_IMAGE, _EDIT = {"image": "path"}, {"image": "path", "instruction": "instruction"}
BUILTIN_STAGES = {
    "image_edit": BuiltinStage(
        f"{_STAGES}.image_edit:ImageEdit", outputs=("edited",), columns=_EDIT, imports=_DIFFUSERS
    ),
    "image_edit_encode": BuiltinStage(
        f"{_STAGES}.image_edit:Encode",
        components=("text_encoder", "tokenizer", "processor"),
        outputs=("embeds",),
        columns=_EDIT,
        imports=_DIFFUSERS,
    ),
    "image_edit_denoise": BuiltinStage(
        f"{_STAGES}.image_edit:Denoise",
        components=("transformer", "vae", "scheduler"),
        outputs=("latents",),
        reads=("embeds",),
        columns=_IMAGE,
        imports=_DIFFUSERS,
    ),
    "image_edit_decode": BuiltinStage(
        f"{_STAGES}.image_edit:Decode",
        components=("vae",),
        outputs=("edited",),
        reads=("latents",),
        imports=_DIFFUSERS,
    ),
    "image_to_image": BuiltinStage(
        f"{_STAGES}.diffusion:ImageToImage",
        outputs=("picture",),
        columns={"image": "path", "prompt": "prompt"},
        imports=_DIFFUSERS,
    ),
    "text_to_image": BuiltinStage(
        f"{_STAGES}.diffusion:TextToImage",
        outputs=("picture",),
        columns={"prompt": "prompt"},
        imports=_DIFFUSERS,
    ),
    "vlm_score": BuiltinStage(
        f"{_STAGES}.vlm_score:VlmScore",
        outputs=("score",),
        columns={"images": ("path", "edited")},
        templates={"question": ("instruction",)},
        imports=_TRANSFORMERS,
    ),
    "clip_score": BuiltinStage(
        f"{_STAGES}.clip_score:ClipScore",
        outputs=("similarity",),
        columns={"image": "edited", "text": None, "other": None},
        imports=_TRANSFORMERS,
    ),
    "torch_module": BuiltinStage(
        f"{_STAGES}.torch_module:TorchModule",
        needs_model=False,
        columns={"input": "path"},
        code=("module",),
        imports=("torch",),
    ),
    "function": BuiltinStage(f"{_STAGES}.function:Function", needs_model=False, code=("function",)),
    "openai": BuiltinStage(
        f"{_STAGES}.openai:OpenAI",
        needs_model=False,
        columns={"images": (), "request": None},
        templates={"prompt": (), "system": ()},
        manners=(
            "concurrency",
            "requests_per_minute",
            "tokens_per_minute",
            "timeout_s",
            "retries",
            "api_key_env",
            "cost_per_million",
        ),
        imports=(f"{_STAGES}.openai",),
    ),
    "command": BuiltinStage(f"{_STAGES}.command:Command", needs_model=False, templates={"run": ()}),
}


def find_builtin_stage(name: str) -> BuiltinStage:
    """Return the stage called ``name``. Raises UnknownName."""
    if name not in BUILTIN_STAGES:
        raise UnknownName("kind", name, BUILTIN_STAGES)
    return BUILTIN_STAGES[name]
