"""Load processors of vision-language models, also where torchvision is not installed."""

import functools
from pathlib import Path
from typing import Any

from evenload._optional import is_installed


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
