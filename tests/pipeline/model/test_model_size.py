"""Bytes of models from configs alone are those of the classes themselves; every source says the same."""

import json
import shutil
import struct
from pathlib import Path

import pytest
import torch

from evenload.devices.rates.hardware import find_hardware
from evenload.errors import ConfigError, FormatError
from evenload.pipeline.model.model_size import find_model, measure_model
from evenload.pipeline.model.parameter_counts import COUNTS
from evenload.pipeline.model.safetensors_header import weight_bytes
from evenload.pipeline.planning.estimates.work_estimate import estimate_work

CONFIGS = Path(__file__).parents[3] / "examples/edit-and-score/configs"
GIB = 2**30


def test_the_real_models_from_their_configs() -> None:
    edit = measure_model(CONFIGS / "qwen-image-edit", "bfloat16")
    assert edit.bytes == 57_698_920_550
    assert {c.name: round(c.bytes / GIB, 2) for c in edit.components} == {
        "vae": 0.24,
        "text_encoder": 15.45,
        "transformer": 38.05,
    }
    weights = measure_model(CONFIGS / "qwen-image-edit", "bfloat16", ["transformer", "vae"]).weights
    assert (weights.n_blocks, round(weights.block_bytes / 2**20, 1)) == (60, 648.2)
    assert measure_model(CONFIGS / "qwen2.5-vl-7b").bytes == 2 * 8_292_166_656
    assert edit.notes == ()
    assert "bfloat16 is assumed" in measure_model(CONFIGS / "qwen-image-edit").notes[0]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["transformer", "vae", "text_encoder"])
def test_formulas_are_the_classes_of_the_real_models(part: str) -> None:
    pytest.importorskip("diffusers", reason="needs the extra models")
    from evenload.pipeline.model.parameter_counts import count_on_meta

    config = json.loads((CONFIGS / "qwen-image-edit" / part / "config.json").read_text())
    name = config.get("_class_name") or config["architectures"][0]
    if name.startswith("Qwen2_5"):
        vision = config.pop("vision_config")
        kinds = ("architectures", "model_type", "dtype")
        text = {key: value for key, value in config.items() if key not in kinds}
        config = {"architectures": [name], "text_config": text, "vision_config": vision}
    assert count_on_meta(config, name).total == COUNTS[name](config).total


def test_headers_formulas_and_classes_agree_on_tiny_models(tiny_models: Path, tmp_path: Path) -> None:
    for model in ("edit", "scorer", "clip"):
        there = measure_model(tiny_models / model)
        assert {c.source for c in there.components} == {"headers"}
        shutil.copytree(
            tiny_models / model, tmp_path / model, ignore=shutil.ignore_patterns("*.safetensors*")
        )
        planned = measure_model(tmp_path / model, "float32")
        assert {c.source for c in planned.components} == {"classes" if model == "clip" else "config"}
        assert planned.bytes == there.bytes
        assert planned.weights == there.weights


def test_damaged_and_missing_models_are_clear_errors(tiny_models: Path, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"neither model_index.json nor config.json"):
        measure_model(tmp_path)
    with pytest.raises(ConfigError, match=r"has no component unet"):
        measure_model(tiny_models / "edit", only=["unet"])
    (tmp_path / "config.json").write_text('{"architectures": ["NoSuchModel"]}')
    with pytest.raises(ConfigError, match=r"nothing of .* can be counted") as caught:
        measure_model(tmp_path)
    assert "NoSuchModel" in (caught.value.hint or "")
    (tmp_path / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0nonsense")
    with pytest.raises(FormatError, match="safetensors"):
        measure_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(FormatError, match="cannot be read"):
        measure_model(tmp_path)


def test_an_index_says_how_much_an_unknown_class_needs(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["NoSuchModel"], "torch_dtype": "float16"}')
    (tmp_path / "model.safetensors.index.json").write_text('{"metadata": {"total_size": 1000}}')
    (component,) = measure_model(tmp_path).components
    assert (component.source, component.bytes, component.dtype) == ("index", 1000, "float16")


def test_downloaded_models_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = tmp_path / "models--own--model/snapshots/abc"
    snapshot.mkdir(parents=True)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert find_model("own/model", tmp_path) == snapshot
    assert find_model("own/other", tmp_path) is None
    assert find_model("../model", tmp_path) is None


def test_work_is_near_what_was_measured_elsewhere() -> None:
    """17.78 s for 50 steps on an H200, so 548 TFLOP/s: vllm-omni #3684. Guidance computes twice."""
    config = json.loads((CONFIGS / "qwen-image-edit/transformer/config.json").read_text())
    work = estimate_work("QwenImageTransformer2DModel", config, {}, None)
    assert work is not None
    assert work.flop / 50 == pytest.approx(195e12, rel=0.05)
    guided = estimate_work("QwenImageTransformer2DModel", config, {"negative_prompt": " "}, None)
    assert guided is not None
    assert (guided.n_passes, guided.flop) == (100, 2 * work.flop)
    assert estimate_work("NoSuchModel", {}, {}, None) is None


@pytest.mark.parametrize(
    ("product", "known"),
    [("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA GeForce RTX 4090", "rtx4090"), ("NVIDIA L40S", "l40s"),
     ("NVIDIA A100-SXM4-80GB", "a100"), *((f"NVIDIA {one}", None) for one in (
        "Radeon", "GeForce RTX 4070 Ti", "GeForce RTX 4080 SUPER", "GeForce RTX 4090 D",
        "GeForce RTX 4090 Laptop GPU", "T400", "L40"))],
)  # fmt: skip
def test_products_are_recognised_and_a_card_of_a_like_name_is_another(product: str, known: str) -> None:
    assert find_hardware(product) == (find_hardware(known) if known else None)


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
