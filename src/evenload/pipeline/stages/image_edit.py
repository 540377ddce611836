"""Edit pictures by instruction with Qwen-Image-Edit and Edit-Plus, as one stage or as three.

    image_edit = image_edit_encode ──► image_edit_denoise ──► image_edit_decode
                 text encoder          transformer, VAE       VAE

Each of the three loads its own part of the checkpoint and hands a file to the next. The picture has the same
bytes as that of the whole pipeline. One item at a time, as a batch changes the last bits.
"""

import contextlib
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from evenload.errors import ConfigError, quoted
from evenload.pipeline.artifacts import open_picture, read_tensors
from evenload.pipeline.stage import Item, StageContext
from evenload.pipeline.stages.loading import PipelineStage, load_pipeline, settings_of

_AREA = threading.local()


class ImageEdit(PipelineStage):
    """A stage that runs the whole pipeline. Outputs ``edited``, a picture.

    The model is a QwenImageEdit or QwenImageEditPlus checkpoint.

    image        the item's column with the picture's path; for Edit-Plus a list of columns
    instruction  the column with the text; ``call: {prompt: ...}`` gives one for all items instead
    area         pixels that the pipeline works on; by default what evenload.json in the model's folder
                 says, or the model's own 1024 x 1024
    threads      of torch on the CPU; more than one may change the last bits
    """

    parts: ClassVar[tuple[str, ...] | None] = None

    def __init__(
        self,
        context: StageContext,
        *,
        image: str | list[str] = "path",
        instruction: str = "instruction",
        area: int | None = None,
        download: bool = False,
        threads: int | None = 1,
    ):
        self._image, self._instruction = image, instruction
        self._area = area or settings_of(context).get("area")
        self._pipe = load_pipeline(context, parts=self.parts, download=download, threads=threads)
        if not hasattr(sys.modules[type(self._pipe).__module__], "calculate_dimensions"):
            raise ConfigError(
                f"stage {quoted(context.stage)} has a {type(self._pipe).__name__}, "
                "not a QwenImageEdit pipeline",
                hint="use kind: image_to_image",
            )
        self._is_plus = isinstance(image, list) or "Plus" in type(self._pipe).__name__
        _let_area_change(type(self._pipe))

    def __call__(self, inputs: Mapping[str, Any], item: Item, **call: Any) -> dict[str, Any]:
        import torch

        with torch.inference_mode(), _working_on(self._area):
            pictures = self._pictures(inputs)
            prompt = call.pop("prompt", None) or _column(inputs, self._instruction, "instruction")
            if call.get("negative_prompt") is None:
                call = {"true_cfg_scale": 1.0, **call}  # else the pipeline warns for each picture
            edited = self._pipe(image=pictures, prompt=prompt, generator=item.generator(), **call)
        return {"edited": edited.images[0]}

    def _pictures(self, inputs: Mapping[str, Any]) -> Any:
        if isinstance(self._image, list):
            return [open_picture(_column(inputs, name, "image")) for name in self._image]
        return open_picture(_column(inputs, self._image, "image"))

    def _dimensions(self, pixels: int, picture: Any) -> tuple[int, int]:
        """Return the width and height to which the pipeline scales ``picture``."""
        found = sys.modules[type(self._pipe).__module__].calculate_dimensions(
            pixels, picture.size[0] / picture.size[1]
        )
        return int(found[0]), int(found[1])


class Encode(ImageEdit):
    """A stage that runs the text encoder. Outputs ``embeds``: tensors of the instruction and the picture."""

    parts = ("text_encoder",)

    def __call__(self, inputs: Mapping[str, Any], item: Item, **call: Any) -> dict[str, Any]:
        import torch

        prompt, negative_prompt = call.get("prompt"), call.get("negative_prompt")
        with torch.inference_mode(), _working_on(self._area):
            picture = self._scaled_for_text_encoder(self._pictures(inputs))
            text = prompt or _column(inputs, self._instruction, "instruction")
            tensors = self._encoded(text, picture, "prompt")
            if negative_prompt is not None:
                tensors |= self._encoded(negative_prompt, picture, "negative_prompt")
        return {"embeds": tensors}

    def _scaled_for_text_encoder(self, pictures: Any) -> Any:
        resize = self._pipe.image_processor.resize
        if not self._is_plus:
            width, height = self._dimensions(1024 * 1024, pictures)
            return resize(pictures, height, width)
        module = sys.modules[type(self._pipe).__module__]
        seen = []
        for picture in pictures if isinstance(pictures, list) else [pictures]:
            width, height = self._dimensions(module.CONDITION_IMAGE_SIZE, picture)
            seen.append(resize(picture, height, width))
        return seen

    def _encoded(self, text: str, picture: Any, name: str) -> dict[str, Any]:
        import torch

        embeds, mask = self._pipe.encode_prompt(
            image=picture, prompt=text, device=self._pipe.text_encoder.device
        )
        if mask is None:  # the pipeline means that all tokens count
            mask = torch.ones(embeds.shape[:2], dtype=torch.long)
        return {f"{name}_embeds": embeds, f"{name}_embeds_mask": mask}


class Denoise(ImageEdit):
    """A stage that runs the transformer. Takes ``embeds``, outputs ``latents`` as tensors."""

    parts = ("transformer", "vae")

    def __call__(self, inputs: Mapping[str, Any], item: Item, **call: Any) -> dict[str, Any]:
        import torch

        with torch.inference_mode(), _working_on(self._area):
            pictures = self._pictures(inputs)
            device = self._pipe._execution_device
            embeds = {name: tensor.to(device) for name, tensor in read_tensors(inputs["embeds"]).items()}
            call = {name: value for name, value in call.items() if "prompt" not in name}
            if "negative_prompt_embeds" not in embeds:
                call = {"true_cfg_scale": 1.0, **call}
            latents = self._pipe(
                image=pictures,
                prompt=None,
                generator=item.generator(),
                output_type="latent",
                **embeds,
                **call,
            ).images
            size = torch.tensor(self._output_size(pictures, call.get("height"), call.get("width")))
        return {"latents": {"latents": latents, "size": size}}

    def _output_size(self, pictures: Any, height: int | None, width: int | None) -> list[int]:
        """Return [height, width] of the picture that the latents stand for, as the pipeline rounds it."""
        last = pictures[-1] if isinstance(pictures, list) else pictures
        default_width, default_height = self._dimensions(1024 * 1024, last)
        step = self._pipe.vae_scale_factor * 2
        return [(height or default_height) // step * step, (width or default_width) // step * step]


class Decode(ImageEdit):
    """A stage that runs the VAE. Takes ``latents``, outputs ``edited``, a picture."""

    parts = ("vae",)

    def __call__(self, inputs: Mapping[str, Any], item: Item, **call: Any) -> dict[str, Any]:
        import torch

        pipe, vae = self._pipe, self._pipe.vae
        with torch.inference_mode():
            saved = read_tensors(inputs["latents"])
            height, width = saved["size"].tolist()
            packed = saved["latents"].to(vae.device)
            latents = pipe._unpack_latents(packed, height, width, pipe.vae_scale_factor).to(vae.dtype)
            shape = (1, vae.config.z_dim, 1, 1, 1)
            mean = torch.tensor(vae.config.latents_mean).view(shape).to(latents.device, latents.dtype)
            inverse = 1.0 / torch.tensor(vae.config.latents_std).view(shape).to(latents.device, latents.dtype)
            decoded = vae.decode(latents / inverse + mean, return_dict=False)[0][:, :, 0]
            return {"edited": pipe.image_processor.postprocess(decoded, output_type="pil")[0]}


def _column(inputs: Mapping[str, Any], name: str, what: str) -> Any:
    if name not in inputs:
        raise ConfigError(
            f"the item has no column {quoted(name)} for the {what}",
            hint=f"columns: {', '.join(inputs)}; name it with params: {{{what}: ...}}",
        )
    return inputs[name]


@contextlib.contextmanager
def _working_on(pixels: int | None) -> Iterator[None]:
    """Have pipelines of this thread work on ``pixels`` in place of 1024 x 1024."""
    _AREA.pixels = pixels
    try:
        yield
    finally:
        _AREA.pixels = None


def _let_area_change(pipeline_class: type) -> None:
    """Have the pipeline ask this thread for its working area, which is a constant in diffusers."""
    module = sys.modules[pipeline_class.__module__]
    original = module.calculate_dimensions
    if getattr(original, "asks_thread", False):
        return

    def calculate_dimensions(target_area: float, ratio: float) -> Any:
        pixels = getattr(_AREA, "pixels", None)
        if pixels is not None:  # in proportion, where it has a second, smaller area; its grid is 32
            target_area = max(target_area * pixels / (1024 * 1024), 32 * 32)
        return original(target_area, ratio)

    calculate_dimensions.asks_thread = True  # pyrefly: ignore
    module.calculate_dimensions = calculate_dimensions  # pyrefly: ignore
