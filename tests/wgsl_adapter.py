"""One adapter for all tests of WGSL kernels; without one they skip with the set-up script's own words."""

import atexit
import functools
from typing import Any

import pytest
from loaded_programs import load

from evenload.errors import MissingExtra, NoUsableDevice


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
    return load("scripts/setup.py").VULKAN.without


@pytest.fixture(scope="session")
def context() -> Any:
    found = opened()
    return pytest.skip(found) if isinstance(found, str) else found
