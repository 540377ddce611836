"""One adapter for all tests of WGSL kernels; without one they skip with the set-up script's own words."""

import atexit
import functools
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from evenload.errors import MissingExtra, NoUsableDevice

SETUP = Path(__file__).parents[1] / "scripts" / "setup.py"


@functools.cache
def opened() -> Any:
    """The best adapter's context, or the words of why there is none."""
    from evenload.gpu.wgsl.context import Context

    try:
        context = Context()
    except (MissingExtra, NoUsableDevice) as error:
        return f"{_words()}: {error.message}"
    atexit.register(context.close)
    return context


def _words() -> str:
    spec: Any = importlib.util.spec_from_file_location("evenload_setup", SETUP)
    setup = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = setup  # dataclasses look their module up
    spec.loader.exec_module(setup)
    return setup.VULKAN.without


@pytest.fixture(scope="session")
def context() -> Any:
    found = opened()
    return pytest.skip(found) if isinstance(found, str) else found
