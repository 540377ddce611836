"""Score pictures by a vision-language model: its expected answer, from the probabilities of the digits.

One forward pass and no sampling: equal pictures get equal scores, which are not only whole numbers.
"""

from collections.abc import Mapping
from typing import Any

from evenload.errors import ConfigError
from evenload.pipeline.artifacts import open_picture
from evenload.pipeline.stage import Item, StageContext
from evenload.pipeline.stages.loading import load_model, load_processor

QUESTION = (
    "The first picture was edited by the instruction: {instruction}\nThe second picture is the result. "
    "How well does it follow the instruction and keep everything else? Answer with one digit from 0 to 9."
)


class VlmScore:
    """A stage that outputs ``score``: the mean of the digits 0..9, weighted by the model's probabilities.

    The model is one of the kind of Qwen2.5-VL.

    images     columns with the pictures that it is shown, in this order
    question   the text after them; ``{column}`` stands for the item's value
    auto_class class of transformers that reads the checkpoint
    max_pixels larger pictures are made smaller before the processor sees them
    """

    def __init__(
        self,
        context: StageContext,
        *,
        images: list[str] | None = None,
        question: str = QUESTION,
        auto_class: str = "AutoModelForImageTextToText",
        max_pixels: int | None = None,
        download: bool = False,
        threads: int | None = 1,
    ):
        self._images = images if images is not None else ["path", "edited"]
        self._question, self._max_pixels = question, max_pixels
        self._model, folder = load_model(context, auto_class=auto_class, download=download, threads=threads)
        self._processor = load_processor(folder)
        self._digits = digit_tokens(self._processor.tokenizer, folder.name)

    def __call__(self, inputs: Mapping[str, Any], item: Item) -> dict[str, Any]:
        import torch

        pictures = [self._picture(inputs[name]) for name in self._images]
        content: list[dict[str, Any]] = [{"type": "image"} for _ in pictures]
        content.append({"type": "text", "text": fill_question(self._question, inputs)})
        text = self._processor.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
        )
        batch = self._processor(text=[text], images=pictures or None, return_tensors="pt")
        device = next(self._model.parameters()).device
        with torch.inference_mode():
            logits = self._model(**{name: tensor.to(device) for name, tensor in batch.items()}).logits
        return {"score": round(expected_score(logits[0, -1, self._digits].float().cpu()), 4)}

    def _picture(self, path: str) -> Any:
        picture = open_picture(path)
        scale = (self._max_pixels / (picture.width * picture.height)) ** 0.5 if self._max_pixels else 1.0
        if scale >= 1:
            return picture
        return picture.resize((max(28, int(picture.width * scale)), max(28, int(picture.height * scale))))


def fill_question(question: str, inputs: Mapping[str, Any]) -> str:
    """Fill the item's values into ``question``. Raises ConfigError on a missing column."""
    try:
        return question.format_map(inputs)
    except (KeyError, IndexError, ValueError) as error:
        raise ConfigError(
            f"the question asks for {error}, which the item does not have",
            hint=f"columns: {', '.join(inputs)}; write {{{{ for a brace",
        ) from error


def digit_tokens(tokenizer: Any, model: str) -> list[int]:
    """Return the tokens of 0..9. Raises ConfigError if the tokenizer has no token of its own for each."""
    encoded = [tokenizer.encode(str(digit), add_special_tokens=False) for digit in range(10)]
    if any(len(tokens) != 1 for tokens in encoded) or len({tokens[0] for tokens in encoded}) != 10:
        raise ConfigError(f"the tokenizer of {model} has no token for each digit", hint="use another scorer")
    return [tokens[0] for tokens in encoded]


def expected_score(logits: Any) -> float:
    """Return the mean digit under the softmax of ``logits``, float [10], one for each digit."""
    import torch

    return float((logits.double().softmax(-1) * torch.arange(10, dtype=torch.float64)).sum())
