"""``evenload.LLM``: a language model on each device, and prompts for whichever is free."""

import functools
import os
import pickle
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from evenload._arguments import choice, sequence, whole
from evenload._closing import Closing
from evenload.errors import ConfigError, PromptsFailed, TaskError, quoted
from evenload.executor.decide.summary import Summary
from evenload.executor.executor import DeviceSpec, Executor
from evenload.executor.task.prepare import named, pickle_callable
from evenload.integrations.built_function import executor_for
from evenload.integrations.engines import BATCHES, ENGINES, Engine, Prompt

OWN_BATCH = 16  # for engines of others


class LLM(Closing):
    """A language model with an engine on each device, loaded once, that takes prompts as it is free.

    model     a name or folder that the engine knows
    devices   as for ``Executor``; with servers, a worker for each if it is not given
    engine    "transformers", "vllm", "openai" (servers; with ``url=``), or a class that is built with
              ``model`` and ``device=`` and has ``generate(prompts, **sampling)``
    batch     most prompts in one call of the engine; a device where they do not fit gets fewer
    executor  one to use instead of one of its own on ``devices``; it stays open
    options   of the engine
    Use it in a ``with`` block, or call ``close``. Raises ConfigError, UnknownName or NoUsableDevice.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        devices: DeviceSpec | None = None,
        engine: str | type[Engine] = "transformers",
        batch: int | None = None,
        executor: Executor | None = None,
        **options: Any,
    ):
        if isinstance(engine, str):
            kind: Any = ENGINES[choice("engine", engine, tuple(ENGINES))]
        elif callable(engine):
            kind = engine
        else:
            hint = f"give one of {', '.join(ENGINES)}, or a class with generate(prompts, **sampling)"
            raise ConfigError(f"engine={quoted(engine)} is none", hint=hint)
        if not isinstance(model, str | os.PathLike):
            raise ConfigError(f"model={quoted(model)} is no name", hint="give the name or folder of a model")
        if engine == "openai":
            n_servers = len(_addresses(options))
            devices = f"cpu*{n_servers}" if devices is None else devices
        usual = BATCHES.get(engine, OWN_BATCH) if isinstance(engine, str) else OWN_BATCH
        self._batch = usual if batch is None else whole("batch", batch, least=1)
        body, buffers = pickle_callable(functools.partial(kind, os.fspath(model), **options))
        name = getattr(kind, "__qualname__", "engine")
        self._task = named(name, _Prompts, name, body, [bytes(buffer) for buffer in buffers])
        self._until_closed = ExitStack()
        used = executor_for(executor, "all" if devices is None else devices)
        self._executor = self._until_closed.enter_context(used)
        self.summary: Summary | None = None

    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        on_error: str = "raise",
        retries: int = 0,
        timeout_s: float | None = None,
        **sampling: Any,
    ) -> list[Any]:
        """Return the text for each of ``prompts``, in their order. The longest are begun first.

        prompts    texts, conversations (lists of messages with ``role`` and ``content``), or lists of tokens
        on_error   "raise" PromptsFailed when all others are done, whose ``results`` has them; or "return" a
                   TaskError in the place of a prompt that failed
        retries    so often a prompt is tried again
        timeout_s  of one prompt: a call has so long for each; then its worker is replaced
        sampling   as the engine has it: ``max_tokens``, ``temperature``, ...
        Raises ConfigError if a prompt is none of these.
        """
        if isinstance(prompts, Mapping):
            hint = "give a list of prompts; one conversation is [[{...}]]"
            raise ConfigError(f"prompts={quoted(prompts)} is no list", hint=hint)
        asked = [_checked(prompt, at) for at, prompt in enumerate(sequence("prompts", prompts))]
        choice("on_error", on_error, ("raise", "return"))
        options = {"retries": retries, "timeout_s": timeout_s}
        texts = self._written(asked, sampling, options)
        failed = [text for text in texts if isinstance(text, TaskError)]
        if failed and on_error == "raise":
            raise PromptsFailed(f"{len(failed)} of {len(texts)} prompts failed", failed[0], texts)
        return texts

    def _written(
        self, asked: list[Any], sampling: Mapping[str, Any], options: Mapping[str, Any]
    ) -> list[Any]:
        """A text, or a TaskError, for each prompt."""
        lengths = [_length(prompt) for prompt in asked]
        order = sorted(range(len(asked)), key=lambda at: -lengths[at])  # what goes together is of like length
        results = self._executor.map(
            self._task,
            [(asked[at], sampling) for at in order],
            batch=self._batch,
            cost=[lengths[at] for at in order],
            on_error="return",
            stage="generate",
            **options,
        )
        texts: list[Any] = [None] * len(asked)
        for at, text in zip(order, results, strict=True):
            texts[at] = _failure(text, at) if isinstance(text, Exception) else text
        self.summary = results.summary
        return texts

    def close(self) -> None:
        """Unload the models, unless they are on an executor of yours."""
        self._until_closed.close()


class _Prompts:
    """An engine in a worker, called with prompts of one ``generate``, and how to sample."""

    def __init__(self, name: str, body: bytes, buffers: list[bytes], *, device: Any):
        self._engine: Any = pickle.loads(body, buffers=buffers)(device=device)
        if not callable(getattr(self._engine, "generate", None)):
            raise ConfigError(f"{name} has no method generate", hint="give it generate(prompts, **sampling)")

    def __call__(self, batch: Sequence[tuple[Prompt, Mapping[str, Any]]]) -> list[Any]:
        prompts, sampling = [prompt for prompt, _ in batch], batch[0][1]
        return list(self._engine.generate(prompts, **sampling))

    def close(self) -> None:
        close = getattr(self._engine, "close", None)
        if callable(close):
            close()


def _addresses(options: Mapping[str, Any]) -> tuple[str, ...]:
    url = options.get("url")
    urls = (url,) if isinstance(url, str) else sequence("url", url or ())
    if not urls:
        hint = 'give url="http://localhost:8000/v1", or a list of several'
        raise ConfigError("the engine openai needs a server", hint=hint)
    return urls


def _checked(prompt: Any, at: int) -> Any:
    if isinstance(prompt, str):
        return prompt
    parts = list(prompt) if isinstance(prompt, Sequence) and not isinstance(prompt, bytes) else []
    if parts and (all(isinstance(one, Mapping) for one in parts) or all(type(one) is int for one in parts)):
        return parts
    hint = 'give a text, a list of messages such as {"role": "user", "content": "..."}, or a list of tokens'
    raise ConfigError(f"prompt {at} is {quoted(prompt)}", hint=hint)


def _length(prompt: Prompt) -> float:
    """How much there is to read, in characters; a token has about four."""
    if isinstance(prompt, str):
        return 1.0 + len(prompt)
    return 1.0 + sum(len(str(one.get("content", ""))) if isinstance(one, Mapping) else 4 for one in prompt)


def _failure(error: Exception, at: int) -> TaskError:
    """The error of prompt ``at``, by that number."""
    if isinstance(error, TaskError):
        error.index, error.message = at, re.sub(r"\bitem \d+\b", f"prompt {at}", error.message, count=1)
        error.args = (error.message,)
        return error
    failure = TaskError(f"prompt {at} failed: {error}", index=at)
    failure.__cause__ = error
    return failure
