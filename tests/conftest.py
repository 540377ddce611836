"""For all tests: nothing is remembered from one to the next, and no machine is too slow for them."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ["EVENLOAD_WARM_START"] = "0"  # before any program of a test inherits it
# Ray makes it 15: beside other tests its workers hardly get a turn.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 (its name)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts jobs in the background with Ctrl-C ignored, and programs of the tests would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# An example may take long on a machine that does other things besides.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

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
