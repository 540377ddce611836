"""Tiny models of the real classes, made once for all tests of this folder."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with edit, plus (Edit-Plus), scorer and clip."""
    pytest.importorskip("diffusers", reason="the extra models is not installed")
    from evenload.pipeline.stages import tiny

    folder = tmp_path_factory.mktemp("models")
    tiny.build(folder)
    tiny.build(folder / "second", plus=True)
    (folder / "second" / "edit").rename(folder / "plus")
    return folder
