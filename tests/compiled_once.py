"""Tests are compiled once for all workers of the runner: in a fresh clone each would spend seconds on it."""

from pathlib import Path

import pytest
from _pytest.assertion import rewrite


def compile_tests(config: pytest.Config) -> None:
    """Compile, as pytest would, the test files below the folders asked for that no run has compiled yet."""
    state = config.stash[rewrite.assertstate_key]
    for path in (path for folder in map(Path, config.args) for path in folder.rglob("*.py")):
        if path.name != "conftest.py" and not path.name.startswith("test_"):
            continue
        compiled = rewrite.get_cache_dir(path) / (path.stem + rewrite.PYC_TAIL)
        if rewrite._read_pyc(path, compiled) is None and rewrite.try_makedirs(compiled.parent):
            source_hash, code = rewrite._rewrite_test(path, config)
            rewrite._write_pyc(state, code, source_hash, compiled)
