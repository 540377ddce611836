"""The example ``score-by-vllm`` against a whole vLLM on this CPU that is killed and started anew.

Oracles: what the engine answers to a plain loop over the same edited pictures, and its own log of requests.
"""

import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from engine.engine_runs import HERE, engine_is_here

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not engine_is_here(), reason="vLLM's CPU build is not here: make test-engine"),
]
EXAMPLE = HERE.parents[1] / "examples" / "score-by-vllm"
N_PICTURES, N_IN_FLIGHT = 60, 8
EDITS = ("mirror", "invert", "grey", "brighten")
LIMIT_S = 500
ANSWERED = 'POST /v1/chat/completions HTTP/1.1" 200'


class Engine:
    """A server of the tiny model, which can be killed and started anew at the same address."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        self.log = folder / "engine.log"
        self._model = folder / "model"
        words = [sys.executable, str(EXAMPLE / "tiny_model.py"), str(self._model)]
        subprocess.run(words, check=True, capture_output=True, timeout=LIMIT_S)
        self.start()

    def start(self) -> None:
        host, port = self.url.removeprefix("http://").split(":")
        words = [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(self._model),
            "--served-model-name", "scorer", "--dtype", "float32", "--enforce-eager",
            "--max-model-len", "256", "--host", host, "--port", port,
        ]  # fmt: skip
        quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
        with self.log.open("ab") as log:
            self._server = subprocess.Popen(
                words, env={**os.environ, **quiet}, stdout=log, stderr=log, start_new_session=True
            )
        until(self.is_up)

    def is_up(self) -> bool:
        assert self._server.poll() is None, self.log.read_text()[-4000:]
        try:
            return urllib.request.urlopen(f"{self.url}/health", timeout=5).status == 200
        except (urllib.error.URLError, OSError):
            return False

    def n_answered(self) -> int:
        return self.log.read_text().count(ANSWERED)

    def kill(self) -> None:
        os.killpg(self._server.pid, signal.SIGKILL)
        self._server.wait()

    def score(self, picture: Path, instruction: str) -> int:
        """The answer to one request, as a program of one's own would ask for it."""
        image = base64.b64encode(picture.read_bytes()).decode()
        parts = [
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}},
            {"type": "text", "text": f"How well was this picture edited as asked: {instruction}?"},
        ]
        body = {
            "model": "scorer",
            "messages": [{"role": "user", "content": parts}],
            "temperature": 0,
            "max_tokens": 16,
            "structured_outputs": {"regex": '\\{"score": [1-9]\\}'},
        }
        request = urllib.request.Request(
            f"{self.url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        answer = json.load(urllib.request.urlopen(request, timeout=LIMIT_S))
        return json.loads(answer["choices"][0]["message"]["content"])["score"]


def until(holds: Callable[[], bool]) -> None:
    limit = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.05)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(tmp_path)
    yield engine
    engine.kill()


@pytest.fixture
def job(tmp_path: Path) -> Path:
    from PIL import Image

    for name in ("job.yaml", "edit.py"):
        shutil.copy(EXAMPLE / name, tmp_path)
    chance, rows = np.random.default_rng(0), []
    for number in range(N_PICTURES):
        pixels = chance.integers(0, chance.integers(40, 256), (48, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
        rows.append({"id": f"p{number}", "image": f"{number}.png", "instruction": EDITS[number % len(EDITS)]})
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "job.yaml"


def test_a_run_outlives_its_engine(engine: Engine, job: Path) -> None:
    words = [sys.executable, "-m", "evenload", "run", str(job), "--set", f"score.url={engine.url}/v1"]
    log = job.parent / "run.log"
    with log.open("wb") as out:
        run = subprocess.Popen([*words, "--no-progress"], stdout=out, stderr=out)
    try:
        until(lambda: engine.n_answered() >= N_PICTURES // 4 or run.poll() is not None)
        engine.kill()
        n_before = engine.n_answered()
        assert run.poll() is None, log.read_text()
        engine.start()
        run.wait(timeout=LIMIT_S)
    finally:
        run.kill()
    assert run.returncode == 0, log.read_text()
    assert n_before < N_PICTURES
    assert N_PICTURES <= engine.n_answered() <= N_PICTURES + N_IN_FLIGHT
    folder = job.parent / "runs" / "score-by-vllm"
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == [f"p{number}" for number in range(N_PICTURES)]
    told = [row["outputs"]["score"] for row in rows]
    assert len(set(told)) > 1
    assert told == [
        engine.score(folder / row["outputs"]["edited"], row["inputs"]["instruction"]) for row in rows
    ]
