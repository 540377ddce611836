"""For all tests: nothing is remembered from one to the next, nor for the person who runs them."""

import os
from pathlib import Path

import pytest

os.environ["EVENLOAD_WARM_START"] = "0"  # before any program of a test inherits it

STARTS_PROCESSES = {
    "cli",
    "clients",
    "dashboard",
    "docs",
    "examples",
    "executor",
    "moe",
    "pipeline",
    "report",
    "zk",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Try a test that starts processes once more: a machine that stands still for seconds proves nothing.

    What fails both times fails, and what passed only the second time is listed at the end (``RERUN``).
    The pure parts (balance, devices, gpu, merkle, ...) get no second try.
    """
    tests = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(tests) and item.path.relative_to(tests).parts[0] in STARTS_PROCESSES:
            item.add_marker(pytest.mark.flaky(reruns=1))
