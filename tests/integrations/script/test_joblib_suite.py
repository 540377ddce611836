"""joblib's own cases of loky, with the executors that ``evenload exec`` makes. The oracle is that suite."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow  # each case starts workers


def test_cases_of_joblib(tmp_path):
    pytest.importorskip("joblib.test.test_parallel", reason="joblib is not installed with its cases")
    words = ["-q", "-p", "no:cacheprovider", "--pyargs", "joblib.test.test_parallel", "-k", "loky"]
    ended = subprocess.run(
        [sys.executable, "-m", "evenload", "exec", "-o", "told.json", sys.executable, "-m", "pytest", *words],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=500,
    )
    assert ended.returncode == 0, ended.stdout[-4000:]
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["items"] > 1000
    assert {"joblib.Parallel"} <= {pool["kind"] for pool in told["pools"]}
