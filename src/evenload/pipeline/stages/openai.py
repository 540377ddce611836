"""Ask a server that speaks OpenAI's protocol, such as vLLM's: one chat completion for each item.

A request is sent again, after growing pauses, while the server is busy or not there: connections that fail,
408, 409, 425, 429 and 5xx. What is wrong with the request itself is told at once.
"""

import base64
import http.client
import json
import mimetypes
import os
import random
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from evenload._bounded_json import parse_json
from evenload._private_files import read_plain
from evenload._waiting import waiting
from evenload.errors import ConfigError, EvenloadError, FormatError, quoted, reason_of
from evenload.pipeline.stage import Item, StageContext
from evenload.pipeline.stages.vlm_score import fill_question

__all__ = ["BUSY", "NoRedirects", "OpenAI", "pause_s"]

BUSY = (408, 409, 425, 429)
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 60.0
MOST_ANSWER_BYTES = 64 << 20
MOST_ERROR_BYTES = 4096
MOST_PICTURE_BYTES = 256 << 20


class OpenAI:
    """A stage that asks a server, and outputs its answer.

    url          where the protocol begins, such as http://localhost:8000/v1
    model        the name of the model there
    prompt       what is asked; ``{column}`` stands for the item's value
    system       what the model is told before
    images       columns with pictures, which are sent as they are, before the prompt
    output       name of the output that gets the text
    reads_json   the answer is a JSON object of outputs instead
    body         more of the request: temperature, max_tokens, response_format, ...
    concurrency  requests at once by this worker, where the stage has a ``batch``
    timeout_s    seconds without a word from the server after which a request is tried again
    retries      further attempts at a request
    api_key_env  name of the environment variable with the key; it is written nowhere
    sends_seed   send the item's seed, so that a server which can gives the same answer again
    """

    def __init__(
        self,
        context: StageContext,
        *,
        url: str,
        model: str,
        prompt: str,
        system: str | None = None,
        images: Sequence[str] = (),
        output: str = "answer",
        reads_json: bool = False,
        body: Mapping[str, Any] | None = None,
        concurrency: int = 8,
        timeout_s: float = 120.0,
        retries: int = 6,
        api_key_env: str = "OPENAI_API_KEY",
        sends_seed: bool = True,
    ):
        self._url = _checked_url(url)
        self._body = {"model": model, **(body or {})}
        self._prompt, self._system, self._images = prompt, system, tuple(images)
        self._output, self._reads_json, self._sends_seed = output, reads_json, sends_seed
        self._timeout_s, self._retries = timeout_s, retries
        self._key = os.environ.get(api_key_env, "")
        self._opener = urllib.request.build_opener(NoRedirects)
        self._pool = ThreadPoolExecutor(max(1, concurrency), "evenload-openai")
        self._sleep: Callable[[float], None] = time.sleep

    def __call__(self, inputs: Mapping[str, Any], item: Item) -> dict[str, Any]:
        seed = {"seed": item.seed % 2**31} if self._sends_seed else {}
        text = self.answer(self._messages(inputs), seed)
        if not self._reads_json:
            return {self._output: text}
        outputs = parse_json(text, f"the answer of {self._url}")
        if not isinstance(outputs, dict):
            raise FormatError(
                f"the answer is {quoted(text)}, no JSON object", hint="ask for one in the prompt"
            )
        return outputs

    def batch(
        self, inputs: Sequence[Mapping[str, Any]], items: Sequence[Item]
    ) -> list[dict[str, Any] | Exception]:
        """Ask for several items at once, ``concurrency`` at a time; an item that fails costs no other's."""
        return list(self._pool.map(self._outputs_or_error, inputs, items))

    def _outputs_or_error(self, inputs: Mapping[str, Any], item: Item) -> dict[str, Any] | Exception:
        try:
            return self(inputs, item)
        except Exception as error:
            return error

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def answer(
        self,
        messages: Sequence[Mapping[str, Any]],
        defaults: Mapping[str, Any] = MappingProxyType({}),
        **body: Any,
    ) -> str:
        """Ask, and return the text. ``body`` has precedence over the stage's, and that over ``defaults``."""
        request = {**defaults, **self._body, **body, "messages": messages}
        return self._text(self._ask(json.dumps(request).encode()))

    def _messages(self, inputs: Mapping[str, Any]) -> list[dict[str, Any]]:
        content: Any = fill_question(self._prompt, inputs)
        if self._images:
            pictures = [{"type": "image_url", "image_url": {"url": _as_url(inputs[n])}} for n in self._images]
            content = [*pictures, {"type": "text", "text": content}]
        messages = [{"role": "user", "content": content}]
        if self._system is not None:
            messages.insert(0, {"role": "system", "content": fill_question(self._system, inputs)})
        return messages

    def _ask(self, body: bytes) -> bytes:
        """Send the request until there is an answer. Raises EvenloadError with what was said last."""
        why = ""
        for attempt in range(self._retries + 1):
            try:
                return self._send(body)
            except urllib.error.HTTPError as error:
                with error:
                    said = error.read(MOST_ERROR_BYTES).decode("utf-8", "replace")
                why = self._without_key(f"{self._url} answered {error.code}: {quoted(said, 200)}")
                wanted_s = _seconds(error.headers.get("Retry-After"))
                if error.code not in BUSY and error.code < 500:
                    raise EvenloadError(why, hint=_HINTS.get(error.code, "correct the request")) from None
            except (OSError, http.client.HTTPException) as error:  # also a time limit, or a cut connection
                why, wanted_s = (
                    self._without_key(f"{self._url}: {type(error).__name__}: {reason_of(error)}"),
                    None,
                )
            if attempt == self._retries:
                break
            with waiting():
                self._sleep(pause_s(attempt, wanted_s, random.random()))
        raise EvenloadError(
            f"{why}, {self._retries + 1} times", hint="is the server up? see retries, timeout_s"
        )

    def _send(self, body: bytes) -> bytes:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        request = urllib.request.Request(f"{self._url}/chat/completions", body, headers)
        with waiting(), self._opener.open(request, timeout=self._timeout_s) as reply:
            answer = reply.read(MOST_ANSWER_BYTES + 1)
            if reply.length and len(answer) <= MOST_ANSWER_BYTES:
                raise http.client.IncompleteRead(answer, reply.length)
        if len(answer) > MOST_ANSWER_BYTES:
            raise FormatError(f"{self._url} answered with more than {MOST_ANSWER_BYTES >> 20} MiB")
        return answer

    def _text(self, answer: bytes) -> str:
        said = parse_json(answer, f"the answer of {self._url}", MOST_ANSWER_BYTES)
        try:
            text = said["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError):
            text = None
        if not isinstance(text, str):
            raise FormatError(
                f"{self._url} gave no text: {self._without_key(quoted(said, 200))}",
                hint="is it a server for chat completions? look for a refusal in its answer",
            )
        return text

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text


_HINTS = {
    401: "set the key in the variable that api_key_env names",
    403: "set the key in the variable that api_key_env names",
    404: "url ends before /chat/completions; model must be one that the server has",
}


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer like any other: the key goes to no other server."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        return None


def pause_s(attempt: int, wanted_s: float | None, chance: float) -> float:
    """Seconds before the next attempt: doubling, and spread so that workers do not come back together.

    attempt   0 for the first one that failed
    wanted_s  what the server asked for
    chance    0 to 1
    """
    grown_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(attempt, 30))
    return max(grown_s * (0.5 + chance / 2), min(wanted_s or 0.0, LONGEST_PAUSE_S))


def _seconds(text: str | None) -> float | None:
    try:
        return max(0.0, float(text)) if text else None
    except ValueError:  # a date
        return None


def _checked_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"url: {quoted(url)} is no address of a server", hint="write http://localhost:8000/v1"
        )
    if parts.username is not None or parts.password is not None:
        raise ConfigError(
            f"url: the address of {quoted(parts.hostname)} holds a password, which the run folder would show",
            hint="put the key into an environment variable, and its name into api_key_env",
        )
    return url.rstrip("/")


def _as_url(path: str) -> str:
    kind = mimetypes.guess_type(path)[0] or "application/octet-stream"
    return f"data:{kind};base64,{base64.b64encode(read_plain(Path(path), MOST_PICTURE_BYTES)).decode()}"
