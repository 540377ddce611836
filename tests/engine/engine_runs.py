"""Runs of a whole vLLM on this CPU, and what they recorded: for the tests and for the figures of the docs."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["HERE", "EngineRun", "engine_is_here", "serve", "serve_and_kill"]

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs" / "how-to"
TOLD = re.compile(r"avg_tokens=([\d.]+), max_tokens=(\d+)")
LIMIT_S = 900
AFTER_KILL_S = 300


def engine_is_here() -> bool:
    """Whether vLLM's CPU build is installed here, and its processes import ``vllm_on_cpu``."""
    import importlib.util

    if importlib.util.find_spec("vllm") is None:
        return False
    site = Path(importlib.util.find_spec("vllm").origin).parents[1]  # type: ignore[union-attr, arg-type]
    return (site / "vllm_on_cpu.pth").exists()


@dataclass(frozen=True)
class EngineRun:
    """One run: the answers' tokens, the calls of the policy by rank, and what the engine logged of each step.

    steps  [steps, 2] mean and largest number of tokens of a rank, as the engine itself counts
    """

    answers: list[list[int]]
    plans: list[list[dict[str, Any]]]
    steps: np.ndarray
    log: str


@cache
def model_in(folder: Path) -> Path:
    model = folder / "tiny"
    texts = sorted(map(str, DOCS.glob("*.md")))
    subprocess.run(
        [sys.executable, str(HERE / "tiny_model.py"), str(model), *texts], check=True, timeout=LIMIT_S
    )
    return model


def serve(folder: Path, moe: str, mode: str = "sync", n_ranks: int = 2) -> EngineRun:
    """Serve the prompts with ``EVENLOAD_MOE=moe``. Raises AssertionError with the log if the engine fails."""
    own = folder / f"{moe}-{mode}-{n_ranks}"
    with _start(folder, own, moe, mode, n_ranks) as engine:
        engine.wait(timeout=LIMIT_S)
    log = (own / "log").read_text()
    assert engine.returncode == 0, log[-4000:]
    steps = np.array([[float(mean), float(most)] for mean, most in TOLD.findall(log)]).reshape(-1, 2)
    return EngineRun(json.loads((own / "answers.json").read_text()), plans_in(own), steps, log)


def serve_and_kill(folder: Path, moe: str, mode: str = "sync") -> int:
    """Kill rank 1 after its second plan. Returns the engine's exit code, once the other rank is gone, too.

    Raises subprocess.TimeoutExpired or AssertionError if one has not ended ``AFTER_KILL_S`` later.
    """
    own = folder / f"{moe}-{mode}-killed"
    with _start(folder, own, moe, mode, 2) as engine:
        try:
            limit = time.monotonic() + LIMIT_S
            while not (len(plans := plans_in(own)) == 2 and len(plans[1]) > 1):
                assert engine.poll() is None, "the engine ended before its second plan"
                assert time.monotonic() < limit, "the engine never planned"
                time.sleep(0.05)
            os.kill(plans[1][0]["pid"], signal.SIGKILL)
            engine.wait(timeout=AFTER_KILL_S)
            limit = time.monotonic() + AFTER_KILL_S
            while Path(f"/proc/{plans[0][0]['pid']}").exists():
                assert time.monotonic() < limit, "rank 0 goes on without its engine"
                time.sleep(0.05)
        finally:
            engine.kill()
    return engine.returncode


def _start(folder: Path, own: Path, moe: str, mode: str, n_ranks: int) -> subprocess.Popen[bytes]:
    model = model_in(folder)
    own.mkdir()
    environment = {**os.environ, "EVENLOAD_MOE": moe, "ENGINE_RECORD": str(own / "plans")}
    environment["EVENLOAD_MOE_FETCH_TOKENS"] = "off"  # so few tokens are served that no move would pay
    words = [sys.executable, HERE / "serve.py", model, own / "answers.json", mode, n_ranks]
    with (own / "log").open("wb") as log:
        return subprocess.Popen(list(map(str, words)), env=environment, stdout=log, stderr=log)


def plans_in(folder: Path) -> list[list[dict[str, Any]]]:
    """The calls of the policy by rank; a line that is being written is left out."""
    files = [file.read_text() for file in sorted(folder.glob("plans.*"))]
    return [[json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()] for text in files]
