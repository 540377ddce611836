"""The stages that ship with evenload, by the ``kind`` that a job file names. A table of strings."""

from dataclasses import dataclass

from evenload.errors import UnknownName

__all__ = ["BUILTIN_STAGES", "BuiltinStage", "find_builtin_stage"]


@dataclass(frozen=True, slots=True)
class BuiltinStage:
    """A stage that ships with evenload.

    target      module:Class
    components  parts of the model folder that the stage loads; () for all
    """

    target: str
    needs_model: bool = True
    components: tuple[str, ...] = ()
    is_diffusion: bool = False


_STAGES = "evenload.pipeline.stages"
BUILTIN_STAGES = {
    "image_edit": BuiltinStage(f"{_STAGES}.image_edit:ImageEdit", is_diffusion=True),
    "image_edit_encode": BuiltinStage(
        f"{_STAGES}.image_edit:Encode", components=("text_encoder", "tokenizer", "processor")
    ),
    "image_edit_denoise": BuiltinStage(
        f"{_STAGES}.image_edit:Denoise", components=("transformer", "vae", "scheduler"), is_diffusion=True
    ),
    "image_edit_decode": BuiltinStage(f"{_STAGES}.image_edit:Decode", components=("vae",)),
    "image_to_image": BuiltinStage(f"{_STAGES}.diffusion:ImageToImage", is_diffusion=True),
    "text_to_image": BuiltinStage(f"{_STAGES}.diffusion:TextToImage", is_diffusion=True),
    "vlm_score": BuiltinStage(f"{_STAGES}.vlm_score:VlmScore"),
    "clip_score": BuiltinStage(f"{_STAGES}.clip_score:ClipScore"),
    "torch_module": BuiltinStage(f"{_STAGES}.torch_module:TorchModule", needs_model=False),
    "function": BuiltinStage(f"{_STAGES}.function:Function", needs_model=False),
    "command": BuiltinStage(f"{_STAGES}.command:Command", needs_model=False),
}


def find_builtin_stage(name: str) -> BuiltinStage:
    """Return the stage called ``name``. Raises UnknownName."""
    if name not in BUILTIN_STAGES:
        raise UnknownName("kind", name, BUILTIN_STAGES)
    return BUILTIN_STAGES[name]
