"""Engines that write texts: one per device, behind a small protocol.

``transformers`` is tested with transformers 5.23, ``openai`` with servers of the tests. ``vllm`` is written
by the documentation of vLLM 0.20 and has never been run.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from evenload._optional import is_installed, require
from evenload.devices import CurrentDevice
from evenload.errors import ConfigError
from evenload.pipeline.event_loop import EventLoop
from evenload.pipeline.stage import StageContext

Prompt = str | Sequence[Mapping[str, Any]] | Sequence[int]
"""A text, a conversation of messages with ``role`` and ``content``, or tokens."""


class Engine(Protocol):
    """A model that is loaded on one device: built with ``device=``, closed by ``close`` if it has it."""

    def generate(self, prompts: Sequence[Prompt], **sampling: Any) -> Sequence[Any]:
        """Return what follows each of ``prompts``; an exception in its place fails that prompt alone."""
        ...


class Transformers:
    """An engine of a causal language model of transformers: one padded batch at a time.

    model      name or folder
    tokenizer  name or folder, if it is another
    dtype      of the weights, as transformers has it
    more       further arguments of ``AutoModelForCausalLM.from_pretrained``
    """

    def __init__(self, model: str, device: CurrentDevice, *, tokenizer: str | None = None,
                 dtype: str = "auto", **more: Any):  # fmt: skip
        library: Any = require("transformers", extra="models", why="this engine")
        self._torch: Any = require("torch", extra="models", why="this engine")
        self._tokenizer = library.AutoTokenizer.from_pretrained(tokenizer or model, padding_side="left")
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        loaded = library.AutoModelForCausalLM.from_pretrained(model, dtype=dtype, **more)
        self._model = loaded.to(device.torch).eval()

    def generate(self, prompts: Sequence[Prompt], **sampling: Any) -> list[str]:
        """Write texts, greedily unless ``temperature`` or ``do_sample`` ask for chance.

        sampling  ``max_tokens`` (or ``max_new_tokens``), and whatever the model's ``generate`` takes
        """
        if "max_tokens" in sampling:
            sampling["max_new_tokens"] = sampling.pop("max_tokens")
        if "do_sample" not in sampling:
            sampling["do_sample"] = bool(sampling.get("temperature"))
        if not sampling["do_sample"]:
            sampling.pop("temperature", None)
        if sampling.get("stop_strings"):
            sampling.setdefault("tokenizer", self._tokenizer)  # transformers looks for them in its words
        tokens = [self._tokens(prompt) for prompt in prompts]
        padded = self._tokenizer.pad({"input_ids": tokens}, return_tensors="pt").to(self._model.device)
        with self._torch.inference_mode():
            written = self._model.generate(**padded, pad_token_id=self._tokenizer.pad_token_id, **sampling)
        n_read = padded["input_ids"].shape[1]
        return self._tokenizer.batch_decode(written[:, n_read:], skip_special_tokens=True)

    def _tokens(self, prompt: Prompt) -> list[Any]:
        if isinstance(prompt, str):
            tokens = self._tokenizer(prompt)["input_ids"]
        elif is_chat(prompt):
            text = self._tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
            tokens = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        else:
            tokens = list(prompt)
        if not tokens:
            raise ConfigError("the prompt has no tokens", hint="leave empty prompts out")
        return tokens


class VLLM:
    """An engine of vLLM, which batches by itself. ``more``: further arguments of ``vllm.LLM``. Never run."""

    def __init__(self, model: str, device: CurrentDevice, **more: Any):
        _mask_by_index()
        self._library: Any = require("vllm", extra="gpu", why="this engine")
        self._model = self._library.LLM(model=model, **more)

    def generate(self, prompts: Sequence[Prompt], **sampling: Any) -> list[str]:
        """Write texts. ``sampling``: arguments of ``vllm.SamplingParams``."""
        how = self._library.SamplingParams(**sampling)
        texts: list[str] = [""] * len(prompts)
        chats = [at for at, prompt in enumerate(prompts) if is_chat(prompt)]
        others = sorted(set(range(len(prompts))) - set(chats))
        asked = {at: prompts[at] if isinstance(prompts[at], str) else {"prompt_token_ids": list(prompts[at])}
                 for at in others}  # fmt: skip
        for places, answers in (
            (others, self._model.generate(list(asked.values()), how, use_tqdm=False) if others else ()),
            (chats, self._model.chat([prompts[at] for at in chats], how, use_tqdm=False) if chats else ()),
        ):
            for at, answer in zip(places, answers, strict=True):
                texts[at] = answer.outputs[0].text
        return texts


class Server:
    """A client of servers that speak OpenAI's protocol, one server for each worker.

    url          where the protocol begins, or a list of those
    concurrency  requests at once by each worker
    more         ``timeout_s``, ``retries``, ``api_key_env``; see the pipeline's stage ``openai``
    """

    def __init__(self, model: str, device: CurrentDevice, *, url: str | Sequence[str], concurrency: int = 32,
                 **more: Any):  # fmt: skip
        from evenload.pipeline.stages.openai import OpenAI

        urls = [url] if isinstance(url, str) else list(url)
        mine = urls[int(device.id.rpartition(":")[2]) % len(urls)]
        context = StageContext("llm", device, Path())
        self._client = OpenAI(context, url=mine, model=model, prompt="", **more)
        self._loop, self._n_free = EventLoop(), asyncio.Semaphore(max(1, concurrency))

    def generate(self, prompts: Sequence[Prompt], **sampling: Any) -> list[str | Exception]:
        """Write texts. ``sampling``: more of the request, such as ``temperature`` and ``max_tokens``."""

        async def answer(prompt: Prompt) -> str | Exception:
            if not (isinstance(prompt, str) or is_chat(prompt)):
                return ConfigError("tokens cannot be sent to a server", hint="give texts or conversations")
            messages: Any = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
            async with self._n_free:
                try:
                    return (await self._client.answer(messages, **sampling)).text
                except Exception as error:
                    return error

        async def answers() -> list[str | Exception]:
            return await asyncio.gather(*map(answer, prompts))

        return self._loop.result_of(answers())

    def close(self) -> None:
        self._loop.close()
        self._client.close()


ENGINES: Mapping[str, type] = {"transformers": Transformers, "vllm": VLLM, "openai": Server}
BATCHES = {"transformers": 16, "vllm": 256, "openai": 128}
"""Prompts in one call: halved where memory runs out; servers and vLLM do not need them all at once."""


def is_chat(prompt: Any) -> bool:
    return not isinstance(prompt, str) and bool(prompt) and all(isinstance(one, Mapping) for one in prompt)


def _mask_by_index() -> None:
    """Name the worker's GPU by its number: vLLM 0.20 takes CUDA_VISIBLE_DEVICES for numbers (issue 20939)."""
    mask = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if not mask.startswith("GPU-") or not is_installed("pynvml"):
        return
    import pynvml

    pynvml.nvmlInit()
    try:
        number = pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(mask))
    finally:
        pynvml.nvmlShutdown()
    os.environ["CUDA_VISIBLE_DEVICES"] = str(number)
