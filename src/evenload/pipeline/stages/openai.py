"""Ask a server that speaks OpenAI's protocol, such as vLLM's: one chat completion for each item."""

import base64
import json
import mimetypes
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from evenload._bounded_json import parse_json
from evenload._private_files import read_plain
from evenload.errors import ConfigError, FormatError, quoted
from evenload.events import json_text
from evenload.pipeline.stage import Item, StageContext
from evenload.pipeline.stages.model_servers import MOST_ANSWER_BYTES, ModelServers, checked_url
from evenload.pipeline.stages.vlm_score import fill_question

FACTS = ("finish_reason", "tokens_in", "tokens_out", "latency_s", "cost")
CUT = {"length": "at the limit of its tokens", "content_filter": "by the server's filter of contents"}
MOST_PICTURE_BYTES = 256 << 20
FIRST_TOKENS = 256  # of an answer, where neither the request nor an answer before says more


class AnswerCut(FormatError):
    """An answer that ends before its end; the same request would be cut again."""

    is_final = True


class OpenAI:
    """A stage that asks a server, and outputs its answer.

    url          where the protocol begins, such as http://localhost:8000/v1, or a list of those
    model        the name of the model there
    prompt       what is asked; ``{column}`` stands for the item's value
    system       what the model is told before
    request      the column with a whole request, which goes as it is but for ``model`` and ``body``, in the
                 place of a prompt; ``response`` is an output, too: the server's whole answer, as JSON
    images       columns with pictures, which are sent as they are, before the prompt
    output       name of the output that gets the text
    reads_json   the answer is a JSON object of outputs instead
    also         more outputs: finish_reason, tokens_in, tokens_out, latency_s, cost, or a mapping to names
    cost_per_million  of tokens, ``{in: 0.15, out: 0.6}``; then ``cost`` is an output
    allow_cut    take an answer that was cut at its limit of tokens, or filtered, for one
    body         more of the request: temperature, max_tokens, response_format, ...
    concurrency  requests at once by this worker, where the job file has no ``in_flight``
    requests_per_minute, tokens_per_minute  to each server, by all workers of the run on a machine
    timeout_s    seconds without a word from the server after which a request is tried again
    retries      further attempts at a request
    api_key_env  name of the environment variable with the key; it is written nowhere
    sends_seed   send the item's seed, so that a server which can gives the same answer again
    """

    def __init__(
        self,
        context: StageContext,
        *,
        url: str | Sequence[str],
        model: str | None = None,
        prompt: str | None = None,
        request: str | None = None,
        system: str | None = None,
        images: Sequence[str] = (),
        output: str = "answer",
        reads_json: bool = False,
        also: Sequence[str] | Mapping[str, str] = (),
        allow_cut: bool = False,
        cost_per_million: Mapping[str, float] | None = None,
        body: Mapping[str, Any] | None = None,
        concurrency: int = 8,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        timeout_s: float = 120.0,
        retries: int = 6,
        api_key_env: str = "OPENAI_API_KEY",
        sends_seed: bool = True,
    ):
        urls = [checked_url(one) for one in ([url] if isinstance(url, str) else url)]
        if not urls:
            raise ConfigError("url: the list is empty", hint="write http://localhost:8000/v1")
        if (request is None) == (prompt is None) or (request is not None and (system or images)):
            raise ConfigError(
                f"prompt: {quoted(prompt)}, request: {quoted(request)}: one of them is what is asked",
                hint="write prompt, with system and images; or request: body, a column with whole requests",
            )
        if model is None and request is None:
            raise ConfigError("model is missing", hint="write the name of a model that the server has")
        self._url = urls[0] if len(urls) == 1 else f"{urls[0]} or another"
        self._servers = ModelServers(
            urls, timeout_s=timeout_s, retries=retries, key=os.environ.get(api_key_env, ""),
            requests_per_minute=requests_per_minute, tokens_per_minute=tokens_per_minute,
            shared=context.shared,
        )  # fmt: skip
        self._body = {**({} if model is None else {"model": model}), **(body or {})}
        self._request, self._prompt, self._system, self._images = request, prompt or "", system, tuple(images)
        self._output, self._reads_json, self._sends_seed = output, reads_json, sends_seed
        self._also, self._allow_cut = facts_named(also), allow_cut
        self._prices = _prices_of(cost_per_million)
        if self._prices is not None:
            self._also.setdefault("cost", "cost")

    async def __call__(self, inputs: Mapping[str, Any], item: Item) -> dict[str, Any]:
        if self._request is not None:
            own = inputs[self._request]
            if not isinstance(own, Mapping):
                raise ConfigError(f"{self._request}: {quoted(own)} is no request", hint="give an object")
            answer = await self._ask({**own, **self._body})
        else:
            seed = {"seed": item.seed % 2**31} if self._sends_seed else {}
            answer = await self.answer(self._messages(inputs), seed)
        if answer.reason in CUT and not self._allow_cut:
            raise AnswerCut(
                f"the answer was cut {CUT[answer.reason]} ({answer.reason}): {quoted(answer.text, 120)}",
                hint="raise body.max_tokens, or take it with params: {allow_cut: true}",
            )
        facts = {name: getattr(answer, fact) for fact, name in self._also.items()}
        whole = {} if self._request is None else {"response": answer.whole}
        return self._outputs(answer.text) | facts | whole

    def close(self) -> None:
        self._servers.close()

    async def answer(
        self,
        messages: Sequence[Mapping[str, Any]],
        defaults: Mapping[str, Any] = MappingProxyType({}),
        **body: Any,
    ) -> "ServerAnswer":
        """Ask, and return the answer. ``body`` goes before the stage's, and that before ``defaults``."""
        return await self._ask({**defaults, **self._body, **body, "messages": messages})

    async def _ask(self, request: Mapping[str, Any]) -> "ServerAnswer":
        content = json.dumps(request).encode()
        most = request.get("max_tokens") or request.get("max_completion_tokens")
        expected = len(content) / 4 + (most if isinstance(most, int) else FIRST_TOKENS)
        reply = await self._servers.ask(content, expected, _n_tokens)
        try:
            said = parse_json(reply.content, f"the answer of {self._url}", MOST_ANSWER_BYTES)
        except FormatError as error:
            text = self._servers.without_key(reply.content[:4096].decode("utf-8", "replace"))
            raise FormatError(
                f"{error.message}; it was {quoted(text, 120)}",
                hint="is it a server for chat completions, and url its address?",
            ) from None
        answer = self._read(said, reply.seconds)
        if self._request is None:
            return answer
        name = reply.headers.get("x-request-id") or _at(said, "id")
        return answer._replace(whole=json_text({"status_code": 200, "request_id": name, "body": said}))

    def _read(self, said: Any, seconds: float) -> "ServerAnswer":
        choice = _at(said, "choices", 0)
        reason, text = _at(choice, "finish_reason"), _at(choice, "message", "content")
        reason = reason if isinstance(reason, str) and len(reason) < 100 else None
        is_kept_whole = self._request is not None and isinstance(_at(choice, "message"), dict)
        if text is None and (reason == "content_filter" or is_kept_whole):  # calls of tools, a refusal
            text = ""
        if not isinstance(text, str):
            raise FormatError(
                f"{self._url} gave no text: {self._servers.without_key(quoted(said, 200))}",
                hint="is it a server for chat completions? look for a refusal in its answer",
            )
        counts = [_at(said, "usage", name) for name in ("prompt_tokens", "completion_tokens")]
        n_in, n_out = (one if type(one) is int and 0 <= one < 2**53 else None for one in counts)
        cost = None
        if self._prices is not None and n_in is not None and n_out is not None:
            cost = round((n_in * self._prices[0] + n_out * self._prices[1]) / 1e6, 12)
        return ServerAnswer(text, reason, n_in, n_out, round(seconds, 6), cost)

    def _outputs(self, text: str) -> dict[str, Any]:
        if not self._reads_json:
            return {self._output: text}
        outputs = parse_json(text, f"the answer of {self._url}")
        if not isinstance(outputs, dict):
            raise FormatError(
                f"the answer is {quoted(text)}, no JSON object", hint="ask for one in the prompt"
            )
        return outputs

    def _messages(self, inputs: Mapping[str, Any]) -> list[dict[str, Any]]:
        content: Any = fill_question(self._prompt, inputs)
        if self._images:
            pictures = [{"type": "image_url", "image_url": {"url": _as_url(inputs[n])}} for n in self._images]
            content = [*pictures, {"type": "text", "text": content}]
        messages = [{"role": "user", "content": content}]
        if self._system is not None:
            messages.insert(0, {"role": "system", "content": fill_question(self._system, inputs)})
        return messages


class ServerAnswer(NamedTuple):
    """A text, and what the server says of it; None where it says nothing.

    whole  of a request that is a column's: the server's answer with its status, as JSON
    """

    text: str
    finish_reason: str | None
    tokens_in: int | None
    tokens_out: int | None
    latency_s: float
    cost: float | None = None
    whole: str = ""

    @property
    def reason(self) -> str:
        return self.finish_reason or ""


def facts_named(also: Any) -> dict[str, str]:
    """Return the facts that ``also`` asks for, and the name of each as an output. Raises ConfigError."""
    named = dict(also) if isinstance(also, Mapping) else {one: one for one in also}
    if unknown := [one for one in named if one not in FACTS]:
        raise ConfigError(
            f"also: {quoted(unknown[0])} is no fact of an answer", hint=f"write {', '.join(FACTS)}"
        )
    return named


def _prices_of(given: Any) -> tuple[float, float] | None:
    """Return the prices of a million tokens that went in, and that came out. Raises ConfigError."""
    if given is None:
        return None
    if (
        not isinstance(given, Mapping)
        or set(given) != {"in", "out"}
        or not all(map(_is_price, given.values()))
    ):
        raise ConfigError(
            f"cost_per_million: {quoted(given)} is no price of tokens", hint="write {in: 0.15, out: 0.6}"
        )
    return float(given["in"]), float(given["out"])


def _is_price(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9


def _at(value: Any, *path: str | int) -> Any:
    """Return what lies at ``path`` in a stranger's JSON; None if nothing does."""
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _n_tokens(content: bytes) -> int | None:
    """Read the tokens that a request took."""
    try:
        n_tokens = _at(json.loads(content), "usage", "total_tokens")
    except (ValueError, RecursionError):
        return None
    return n_tokens if type(n_tokens) is int and 0 <= n_tokens < 2**53 else None


def _as_url(path: str) -> str:
    kind = mimetypes.guess_type(path)[0] or "application/octet-stream"
    return f"data:{kind};base64,{base64.b64encode(read_plain(Path(path), MOST_PICTURE_BYTES)).decode()}"
