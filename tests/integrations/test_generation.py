"""``evenload.LLM``: engines on every device, prompts longest first, results in order, failures alone."""

import functools
import importlib
import json
import os
import pickle
import sys
import threading
import types
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import evenload
from evenload.errors import ConfigError, MissingExtra, NoUsableDevice, PromptsFailed, TaskError, UnknownName
from evenload.integrations.engines import VLLM, Transformers

WORDS = ["<pad>", "<eos>", *(f"w{n}" for n in range(60))]


def text_of(n_words, start):
    return " ".join(f"w{(start + 7 * n) % 60}" for n in range(n_words))


@pytest.fixture(scope="module")
def inline():
    with evenload.Executor("cpu*2", backend="inline") as executor:
        yield executor


# --- an engine of somebody ------------------------------------------------------------------------


class Notes:
    """An engine that notes its calls in a folder, has room for few letters, and fails at some prompts."""

    def __init__(self, folder, *, room=10**6, device):
        self.path, self.room, self.device = os.path.join(folder, device.id), room, device.id
        self.note("built")

    def note(self, what):
        with open(self.path, "a") as file:
            file.write(json.dumps(what) + "\n")

    def generate(self, prompts, *, suffix=""):
        if sum(map(len, prompts)) > self.room:
            raise evenload.errors.ResourceExhausted("too many letters")
        self.note(list(prompts))
        if "fail all" in prompts:
            raise RuntimeError("no")
        return [ValueError("bad") if prompt == "fail" else prompt.upper() + suffix for prompt in prompts]


def notes_of(folder):
    return {name: [json.loads(line) for line in (folder / name).read_text().splitlines()]
            for name in sorted(os.listdir(folder))}  # fmt: skip


def test_results_come_in_order_from_processes(tmp_path):
    prompts = ["x" * (1 + n * 37 % 50) for n in range(60)]
    with evenload.LLM(str(tmp_path), devices="cpu*2", engine=Notes, batch=4) as llm:
        assert llm.generate(prompts) == [prompt.upper() for prompt in prompts]
        assert llm.summary.total == 60
        assert llm.generate(prompts[:5], suffix="!") == [prompt.upper() + "!" for prompt in prompts[:5]]
    for first, *calls in notes_of(tmp_path).values():  # each has loaded its engine once
        assert first == "built"
        assert all(len(call) <= 4 for call in calls if call != "built")
        assert "built" not in calls


def test_the_longest_go_first_beside_others_of_their_length(inline, tmp_path):
    prompts = ["x" * (1 + n * 37 % 50) for n in range(40)]
    lengths = sorted(map(len, prompts))
    llm = evenload.LLM(str(tmp_path), engine=Notes, batch=4, executor=inline)
    assert llm.generate(prompts) == [prompt.upper() for prompt in prompts]
    calls = [[list(map(len, call)) for call in notes[1:]] for notes in notes_of(tmp_path).values()]
    assert sorted(length for of_device in calls for call in of_device for length in call) == lengths
    every = [call for of_device in calls for call in of_device]
    longest = max(every, key=max)
    assert any(longest in of_device[:2] for of_device in calls)  # the first call of a device measures it
    for call in every:  # what a device that was held up gives back is dealt again, after shorter ones
        assert sorted(call) == lengths[lengths.index(min(call)) :][: len(call)]


def test_a_batch_that_does_not_fit_is_made_smaller(inline, tmp_path):
    prompts = ["y" * 10] * 20
    llm = evenload.LLM(str(tmp_path), engine=functools.partial(Notes, room=35), batch=16, executor=inline)
    assert llm.generate(prompts) == ["Y" * 10] * 20
    assert max(len(call) for notes in notes_of(tmp_path).values() for call in notes if call != "built") <= 3


@pytest.mark.parametrize("bad", ["fail", "fail all"])
def test_a_prompt_that_fails_fails_alone(inline, tmp_path, bad):
    llm = evenload.LLM(str(tmp_path), engine=Notes, batch=4, executor=inline)
    prompts = ["a", "b", bad, "c" * 20, "d"]
    results = llm.generate(prompts, on_error="return")
    assert isinstance(results[2], TaskError)
    assert results[2].index == 2
    assert str(results[2]).startswith("prompt 2 ")
    assert results[:2] + results[3:] == ["A", "B", "C" * 20, "D"]
    with pytest.raises(PromptsFailed, match="1 of 5 prompts failed") as caught:
        llm.generate(prompts)
    assert caught.value.results[:2] + caught.value.results[3:] == ["A", "B", "C" * 20, "D"]
    assert isinstance(caught.value.__cause__, ValueError | RuntimeError)
    assert pickle.loads(pickle.dumps(caught.value)).results[:2] == ["A", "B"]


class NoEngine:
    def __init__(self, model, *, device):
        pass


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"engine": "lama"}, UnknownName, "transformers"),
        ({"engine": "openai"}, ConfigError, "needs a server"),
        ({"engine": "openai", "url": []}, ConfigError, "needs a server"),
        ({"batch": 0}, ConfigError, "batch"),
        ({"engine": 3}, ConfigError, "a class with generate"),
        ({"executor": 3}, ConfigError, "evenload.Executor"),
        ({"devices": "moon"}, ConfigError, "moon"),
    ],
)
def test_what_cannot_be_is_refused(given, error, words):
    with pytest.raises(error, match=words):
        evenload.LLM("model", **given)
    with pytest.raises(ConfigError, match="name or folder"):
        evenload.LLM(3)


@pytest.mark.parametrize(
    "prompts",
    ["a text", None, [3], [b"a"], [[]], [[1, "a"]], [{"role": "user"}], {"role": "user", "content": "a"}],
)
def test_what_is_no_prompt_is_refused(inline, tmp_path, prompts):
    llm = evenload.LLM(str(tmp_path), engine=Notes, executor=inline)
    with pytest.raises(ConfigError):
        llm.generate(prompts)


def test_what_is_no_engine_is_told(inline):
    llm = evenload.LLM("model", engine=NoEngine, executor=inline)
    with pytest.raises(NoUsableDevice, match="has no method generate"):
        llm.generate(["a"])
    assert evenload.LLM("model", engine=NoEngine, executor=inline).generate([]) == []


# --- transformers ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A folder with a language model of random weights, whose words are w0 to w59."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="w0")
    made = tokenizers.Tokenizer(words)
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    folder = str(tmp_path_factory.mktemp("tiny"))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<eos>")
    fast.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    fast.save_pretrained(folder)
    config = transformers.LlamaConfig(
        vocab_size=len(WORDS), hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64,
        pad_token_id=None, bos_token_id=None, eos_token_id=1, initializer_range=0.5,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def test_transformers_finds_stop_strings_in_the_words_of_its_tokenizer(tiny, monkeypatch):
    engine = Transformers(tiny, types.SimpleNamespace(torch="cpu"))
    asked = []
    monkeypatch.setattr(engine._model, "generate", lambda **given: asked.append(given) or given["input_ids"])
    assert engine.generate(["w3 w4"], stop_strings=["w5"], max_tokens=2) == [""]
    engine.generate(["w3 w4"], max_tokens=2)
    assert asked[0]["tokenizer"] is engine._tokenizer
    assert "tokenizer" not in asked[1]


def alone(folder, prompts, n_tokens):
    """Each prompt by itself, without padding, by the model's own ``generate``: the slow, obvious way."""
    transformers = importlib.import_module("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    texts = []
    for prompt in prompts:
        read = tokenizer(prompt, return_tensors="pt")["input_ids"]
        written = model.generate(read, max_new_tokens=n_tokens, do_sample=False, pad_token_id=1)
        texts.append(tokenizer.decode(written[0, read.shape[1] :], skip_special_tokens=True))
    return texts


@pytest.mark.filterwarnings("ignore")  # of transformers and torch
def test_transformers_writes_in_batches_what_it_writes_alone(inline, tiny):
    prompts = [text_of(1 + n * 5 % 11, 3 * n) for n in range(24)]
    llm = evenload.LLM(tiny, executor=inline, batch=5)
    texts = llm.generate(prompts, max_tokens=7)
    assert texts == alone(tiny, prompts, 7)
    assert len(set(texts)) > 12
    chat = [{"role": "user", "content": "w3 w4"}, {"role": "assistant", "content": "w5"}]
    assert len(set(llm.generate([chat, "w3 w4 w5", [5, 6, 7]], max_new_tokens=4))) == 1
    assert llm.generate(["w3"], temperature=0, max_tokens=3) == alone(tiny, ["w3"], 3)
    assert len(llm.generate(["w3"] * 3, temperature=1.5, max_tokens=3)) == 3
    first, empty, last = llm.generate(["w3", "", "w4"], max_tokens=3, on_error="return")
    assert isinstance(empty.__cause__, ConfigError)
    assert [first, last] == alone(tiny, ["w3", "w4"], 3)


# --- servers --------------------------------------------------------------------------------------


class Handler(BaseHTTPRequestHandler):
    """Shouts the last message; what it was asked stands in ``server.asked``."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(asked)
        text = asked["messages"][-1]["content"]
        code, answer = 200, {"choices": [{"message": {"role": "assistant", "content": text.upper()}}]}
        if text == "forbidden":
            code, answer = 400, {"error": "not that"}
        body = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def servers():
    """Two servers that speak the protocol."""
    made = [ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(2)]
    threads = [threading.Thread(target=server.serve_forever, daemon=True) for server in made]
    for server, thread in zip(made, threads, strict=True):
        server.asked, server.daemon_threads = [], True
        thread.start()
    yield made
    for server, thread in zip(made, threads, strict=True):
        server.shutdown()
        server.server_close()
        thread.join(100)


def test_servers_are_asked_as_they_are_free(inline, servers):
    urls = [f"http://127.0.0.1:{server.server_address[1]}/v1" for server in servers]
    prompts = [f"prompt {n}" for n in range(20)] + ["forbidden"]
    chat = [{"role": "system", "content": "be loud"}, {"role": "user", "content": "hello"}]
    with evenload.LLM("big", engine="openai", url=urls, batch=4, executor=inline) as llm:
        results = llm.generate([*prompts, chat, [1, 2]], temperature=0.5, on_error="return")
    assert results[:20] == [prompt.upper() for prompt in prompts[:20]]
    assert "not that" in str(results[20])
    assert results[21] == "HELLO"
    assert isinstance(results[22].__cause__, ConfigError)
    asked = [one for server in servers for one in server.asked]
    # One that is held up has help: the other server may be asked for the same.
    assert len({json.dumps(one["messages"]) for one in asked}) == 22
    assert {(one["model"], one["temperature"]) for one in asked} == {("big", 0.5)}
    assert chat in [one["messages"] for one in asked]


def test_what_a_server_refuses_fails_alone_and_nothing_is_asked_twice(servers):
    url = f"http://127.0.0.1:{servers[0].server_address[1]}/v1"
    prompts = [*(f"prompt {n}" for n in range(6)), "forbidden"]
    with evenload.LLM("big", engine="openai", url=url, batch=4) as llm:
        results = llm.generate(prompts, on_error="return")
    assert results[:6] == [prompt.upper() for prompt in prompts[:6]]
    assert "not that" in str(results[6])
    assert len(servers[0].asked) == 7


# --- vLLM -----------------------------------------------------------------------------------------


def test_without_vllm_its_install_line_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(MissingExtra, match=r"evenload\[gpu\]"):
        VLLM("model", types.SimpleNamespace(id="cuda:0"))
