"""The Ray Data program of the page about clusters; the tests of pages leave it out, as Ray starts slowly."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "keep-your-cluster.md"
BLOCK = re.compile(
    r"^```python\n(?P<code>import ray\n.*?)^```\n```text\n(?P<output>.*?)^```", re.DOTALL | re.MULTILINE
)


@pytest.mark.slow
def test_batches_of_ray_data_are_dealt_over_the_clusters_devices(tmp_path):
    pytest.importorskip("ray.data")
    block = BLOCK.search(PAGE.read_text(encoding="utf-8"))
    assert block is not None
    (tmp_path / "page.py").write_text(block["code"])
    command = [sys.executable, "-W", "ignore", "page.py"]  # Ray Data warns of its own defaults
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert done.stdout == block["output"]
