"""The stages that ship: ``kind: image_edit`` in a job file is short for their class. A table of strings."""

from dataclasses import dataclass

from evenload.errors import UnknownName

__all__ = ["KINDS", "Kind", "kind_named"]


@dataclass(frozen=True, slots=True)
class Kind:
    """``components`` are those of the model folder that the stage holds; () for all that are there."""

    target: str
    needs_model: bool = True
    components: tuple[str, ...] = ()
    is_diffusion: bool = False


_STAGES = "evenload.pipeline.stages"
KINDS = {
    "image_edit": Kind(f"{_STAGES}.image_edit:ImageEdit", is_diffusion=True),
    "image_edit_encode": Kind(
        f"{_STAGES}.image_edit:Encode", components=("text_encoder", "tokenizer", "processor")
    ),
    "image_edit_denoise": Kind(
        f"{_STAGES}.image_edit:Denoise", components=("transformer", "vae", "scheduler"), is_diffusion=True
    ),
    "image_edit_decode": Kind(f"{_STAGES}.image_edit:Decode", components=("vae",)),
    "image_to_image": Kind(f"{_STAGES}.diffusion:ImageToImage", is_diffusion=True),
    "text_to_image": Kind(f"{_STAGES}.diffusion:TextToImage", is_diffusion=True),
    "vlm_score": Kind(f"{_STAGES}.vlm_score:VlmScore"),
    "clip_score": Kind(f"{_STAGES}.clip_score:ClipScore"),
    "torch_module": Kind(f"{_STAGES}.torch_module:TorchModule", needs_model=False),
    "function": Kind(f"{_STAGES}.function:Function", needs_model=False),
    "command": Kind(f"{_STAGES}.command:Command", needs_model=False),
}


def kind_named(name: str) -> Kind:
    """Raises UnknownName."""
    if name not in KINDS:
        raise UnknownName("kind", name, KINDS)
    return KINDS[name]
