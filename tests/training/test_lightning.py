"""The page's block for Lightning does what it says, where Lightning is installed."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "train-on-unequal-gpus.md"


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="needs: pip install lightning")
def test_lightning_trains_each_sample_once_in_even_batches(tmp_path: Path) -> None:
    blocks = re.findall(
        r"^```python\n(.*?)^```\n```text\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    (block, says), *others = [one for one in blocks if "def lightning(" in one[0]]
    assert not others
    before, _, _ = blocks[0][0].partition("def train(")
    program = tmp_path / "program.py"
    program.write_text(before + block)
    done = subprocess.run(
        [sys.executable, program.name], cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.stdout == says, done.stdout + done.stderr
