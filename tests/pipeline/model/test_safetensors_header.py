"""Weights are counted from headers alone, and damaged files are named."""

import struct
from pathlib import Path

import pytest
import torch

from evenload.errors import FormatError
from evenload.pipeline.model.safetensors_header import weight_bytes


def test_weights_are_counted_without_reading_them(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file(
        {"a": torch.zeros(3, 5), "b": torch.zeros(7, dtype=torch.float16)}, tmp_path / "one.safetensors"
    )
    (tmp_path / "model").mkdir()
    save_file({"c": torch.zeros(11, dtype=torch.int8)}, tmp_path / "model" / "two.safetensors")
    assert weight_bytes({"weights": "one.safetensors", "steps": 4}, tmp_path) == 3 * 5 * 4 + 7 * 2
    assert weight_bytes({"model": "model", "again": str(tmp_path / "model")}, tmp_path) == 11
    assert weight_bytes({"steps": 4, "name": "x"}, tmp_path) is None


@pytest.mark.parametrize(
    "content", [b"", b"\x08", struct.pack("<Q", 1 << 60) + b"{}", struct.pack("<Q", 4) + b"nope"]
)
def test_damaged_weights_are_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(FormatError, match=r"x\.safetensors"):
        weight_bytes({"weights": "x.safetensors"}, tmp_path)
