"""A disk that is quick: where no test cuts the power, what was written is there."""

import pytest

from evenload import _private_files
from evenload.merkle.log import leaf_file, log


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch):
    for module, name in (
        (leaf_file, "sync"),
        (leaf_file, "sync_folder"),
        (_private_files, "sync"),
        (log, "sync_folder"),
    ):
        monkeypatch.setattr(module, name, lambda _: None)
