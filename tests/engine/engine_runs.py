"""Runs of a whole vLLM on this CPU, and what they recorded: for the tests and for the figures of the docs."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["HERE", "EngineRun", "engine_is_here", "serve"]

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs" / "how-to"
TOLD = re.compile(r"avg_tokens=([\d.]+), max_tokens=(\d+)")
LIMIT_S = 900


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


def serve(folder: Path, moe: str, mode: str = "sync") -> EngineRun:
    """Serve the prompts with ``EVENLOAD_MOE=moe``. Raises AssertionError with the log if the engine fails."""
    model, own = model_in(folder), folder / f"{moe}-{mode}"
    own.mkdir()
    environment = {**os.environ, "EVENLOAD_MOE": moe, "ENGINE_RECORD": str(own / "plans")}
    environment["EVENLOAD_MOE_FETCH_TOKENS"] = "off"  # so few tokens are served that no move would pay
    words = [sys.executable, str(HERE / "serve.py"), str(model), str(own / "answers.json"), mode]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    log = done.stdout + done.stderr
    assert done.returncode == 0, log[-4000:]
    plans = [
        [json.loads(line) for line in file.read_text().splitlines()] for file in sorted(own.glob("plans.*"))
    ]
    steps = np.array([[float(mean), float(most)] for mean, most in TOLD.findall(log)]).reshape(-1, 2)
    return EngineRun(json.loads((own / "answers.json").read_text()), plans, steps, log)
