"""Score how alike a picture and a text, or two pictures, are, by a model such as CLIP."""

from collections.abc import Mapping
from typing import Any

from evenload.errors import ConfigError
from evenload.pipeline.artifacts import open_picture
from evenload.pipeline.stage import Item, StageContext
from evenload.pipeline.stages.loading import load_model


class ClipScore:
    """A stage that compares embeddings of CLIP or SigLIP. Outputs ``similarity``, their cosine in -1..1.

    image   column with a picture
    text    column with the text that it is compared with; or
    other   column with the picture that it is compared with
    """

    def __init__(
        self,
        context: StageContext,
        *,
        image: str = "edited",
        text: str | None = None,
        other: str | None = None,
        download: bool = False,
        threads: int | None = 1,
    ):
        if (text is None) == (other is None):
            raise ConfigError(
                "clip_score compares an image with a text or with another image",
                hint="give text: a column, or other: a column",
            )
        self._image, self._text, self._other = image, text, other
        self._model, folder = load_model(context, auto_class="AutoModel", download=download, threads=threads)
        from transformers import AutoImageProcessor, AutoTokenizer

        self._look = AutoImageProcessor.from_pretrained(folder, local_files_only=True)
        self._read = AutoTokenizer.from_pretrained(folder, local_files_only=True) if text else None

    def __call__(self, inputs: Mapping[str, Any], item: Item) -> dict[str, Any]:
        import torch

        with torch.inference_mode():
            seen = self._seen(inputs[self._image])
            compared = (
                self._seen(inputs[self._other]) if self._other else self._words(inputs[str(self._text)])
            )
            cosine = torch.nn.functional.cosine_similarity(seen.double(), compared.double(), dim=-1)
        return {"similarity": round(float(cosine), 5)}

    def _seen(self, path: str) -> Any:
        pixels = self._look(images=open_picture(path), return_tensors="pt")["pixel_values"]
        first = next(self._model.parameters())
        return _vector(self._model.get_image_features(pixel_values=pixels.to(first.device, first.dtype)))

    def _words(self, text: str) -> Any:
        assert self._read is not None
        longest = getattr(self._model.config.text_config, "max_position_embeddings", 77)
        tokens = self._read([str(text)], return_tensors="pt", truncation=True, max_length=longest)
        device = next(self._model.parameters()).device
        named = {name: tokens[name].to(device) for name in ("input_ids", "attention_mask") if name in tokens}
        return _vector(self._model.get_text_features(**named))


def _vector(features: Any) -> Any:
    """Return the embedding, [1, size], whichever way this version of the library wraps it."""
    return features if hasattr(features, "double") else features.pooler_output
