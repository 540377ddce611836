"""Tiny models of the real classes, made once for all tests of this folder."""

import sys
from pathlib import Path
from typing import Any

import pytest
from forked_workers import python_command


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with edit, plus (Edit-Plus), scorer and clip."""
    pytest.importorskip("diffusers", reason="the extra models is not installed")
    from evenload.pipeline.stages import tiny

    folder = tmp_path_factory.mktemp("models")
    tiny.build(folder)
    tiny.build(folder / "second", plus=True)
    (folder / "second" / "edit").rename(folder / "plus")
    return folder


@pytest.fixture(scope="module", autouse=True)
def workers_start_quickly(quick_servers: None) -> None:
    """Most of what a short run takes is the start of its fork server."""


@pytest.fixture
def evenload() -> list[str]:
    """``python -m evenload``. A fixture, as stages in files that import it would use all that is loaded."""
    return [*python_command(), "-c", "from evenload.__main__ import run; run()"]


OWN_STEPS = """
import asyncio
from own.words import WORD

class Grow:
    def __init__(self, context, *, by=2): self.by = by
    def __call__(self, inputs, item, *, plus=0): return {"grown": inputs["n"] * self.by + plus}
    def batch(self, inputs, items, **call): return [self(*both, **call) for both in zip(inputs, items)]

async def greet(row, item):
    await asyncio.sleep(0)
    return f"{WORD} {item.id} {row['grown']}"

made = {}
exec("def hidden(row): return 1", made)
hidden = made["hidden"]
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A user's module ``own.steps`` with another beside it, imported from ``tmp_path``.

    It stands here as who names ``sys.modules`` may run any file: the code of each stage beside it would be
    all that is loaded, and is read anew for each run.
    """
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "__init__.py").write_text("")
    (tmp_path / "own" / "words.py").write_text("WORD = 'hello'\n")
    (tmp_path / "own" / "steps.py").write_text(OWN_STEPS)
    monkeypatch.syspath_prepend(tmp_path)
    import own.steps  # pyrefly: ignore

    yield own.steps
    for name in [name for name in sys.modules if name.partition(".")[0] == "own"]:
        del sys.modules[name]
