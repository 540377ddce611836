"""One adapter for all tests of WGSL kernels; without one they skip with the set-up script's own sentence."""

import importlib.util
import sys
from pathlib import Path

import pytest

from evenload.errors import MissingExtra, NoUsableDevice

SETUP = Path(__file__).resolve().parents[3] / "scripts" / "setup.py"


def sentence() -> str:
    spec = importlib.util.spec_from_file_location("evenload_setup", SETUP)
    setup = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = setup  # dataclasses look their module up
    spec.loader.exec_module(setup)
    return setup.VULKAN.without


@pytest.fixture(scope="session")
def context():
    from evenload.gpu.wgsl.context import Context

    try:
        opened = Context()
    except (MissingExtra, NoUsableDevice) as error:
        pytest.skip(f"{sentence()}: {error.message}")
    yield opened
    opened.close()
