"""Run any image-to-image or text-to-image pipeline of diffusers as a stage."""

from collections.abc import Mapping
from typing import Any

from evenload.errors import ConfigError, quoted
from evenload.pipeline.artifacts import open_picture
from evenload.pipeline.stage import Item, StageContext
from evenload.pipeline.stages.loading import PipelineStage, load_pipeline


class TextToImage(PipelineStage):
    """A stage that draws a picture from a text. Outputs ``picture``.

    The model is a checkpoint that ``AutoPipelineForText2Image`` knows.

    prompt  the item's column with the text; ``call: {prompt: ...}`` gives one for all items instead
    """

    auto_class = "AutoPipelineForText2Image"

    def __init__(
        self,
        context: StageContext,
        *,
        prompt: str = "prompt",
        download: bool = False,
        threads: int | None = 1,
    ):
        self._prompt = prompt
        self._pipe = load_pipeline(context, download=download, threads=threads, auto_class=self.auto_class)

    def __call__(self, inputs: Mapping[str, Any], item: Item, **call: Any) -> dict[str, Any]:
        import torch

        call.setdefault("prompt", inputs.get(self._prompt))
        if call["prompt"] is None:
            raise ConfigError(
                f"the item has no column {quoted(self._prompt)} for the prompt",
                hint=f"columns: {', '.join(inputs)}",
            )
        with torch.inference_mode():
            made = self._pipe(generator=item.generator(), **self._more(inputs), **call)
        return {"picture": made.images[0]}

    def _more(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return {}


class ImageToImage(TextToImage):
    """A stage that draws a picture from a picture and a text. Outputs ``picture``.

    ``image``: the column with the picture's path.
    """

    auto_class = "DiffusionPipeline"

    def __init__(
        self,
        context: StageContext,
        *,
        image: str = "path",
        prompt: str = "prompt",
        pipeline: str = "DiffusionPipeline",
        download: bool = False,
        threads: int | None = 1,
    ):
        self._image = image
        self.auto_class = pipeline
        super().__init__(context, prompt=prompt, download=download, threads=threads)

    def _more(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return {"image": open_picture(inputs[self._image])}
