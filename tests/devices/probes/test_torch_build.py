import sys

import pytest

from evenload._optional import is_installed
from evenload.devices.probes import torch_build as module

ROCM = """
from typing import Optional
__version__ = '2.13.0+rocm6.4'
debug = False
cuda: Optional[str] = None
hip: Optional[str] = '6.4.43482'
"""


def test_versions_are_read_without_running_the_file():
    assert module._constants(ROCM) == {"__version__": "2.13.0+rocm6.4", "hip": "6.4.43482"}
    assert module._constants("__version__ = str(2)\nx, y = 'a', 'b'") == {}


def test_without_torch(monkeypatch):
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    assert module.torch_build() == module.TorchBuild()


@pytest.mark.skipif(not is_installed("torch"), reason="needs torch")
def test_the_installed_torch_agrees():
    loaded_before = "torch" in sys.modules
    build = module.torch_build()
    assert loaded_before or "torch" not in sys.modules
    import torch

    assert (build.version, build.cuda, build.hip) == (
        torch.__version__,
        torch.version.cuda,
        torch.version.hip,
    )
