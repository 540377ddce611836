"""Bytes of models from configs alone are those of the classes themselves; every source says the same."""

import json
from pathlib import Path

import pytest

from evenload.devices.rates.hardware import find_hardware
from evenload.errors import ConfigError, FormatError
from evenload.pipeline.model.model_size import find_model, measure_model
from evenload.pipeline.model.parameter_counts import COUNTS
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


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("diffusers", reason="needs the extra models")
    from evenload.pipeline.stages import tiny

    return tiny.build(tmp_path_factory.mktemp("tiny"))


def test_headers_formulas_and_classes_agree_on_tiny_models(tiny: Path, tmp_path: Path) -> None:
    for model in ("edit", "scorer", "clip"):
        there = measure_model(tiny / model)
        assert {c.source for c in there.components} == {"headers"}
        for file in (tiny / model).rglob("config.json"):
            copied = tmp_path / model / file.relative_to(tiny / model)
            copied.parent.mkdir(parents=True, exist_ok=True)
            copied.write_text(file.read_text())
        if (tiny / model / "model_index.json").exists():
            (tmp_path / model / "model_index.json").write_text(
                (tiny / model / "model_index.json").read_text()
            )
        planned = measure_model(tmp_path / model, "float32")
        assert {c.source for c in planned.components} == {"classes" if model == "clip" else "config"}
        assert planned.bytes == there.bytes
        assert planned.weights == there.weights


def test_damaged_and_missing_models_are_clear_errors(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"neither model_index.json nor config.json"):
        measure_model(tmp_path)
    with pytest.raises(ConfigError, match=r"has no component unet"):
        measure_model(tiny / "edit", only=["unet"])
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


def test_products_are_recognised() -> None:
    assert find_hardware("NVIDIA H100 80GB HBM3") == find_hardware("h100")
    assert find_hardware("NVIDIA GeForce RTX 4090") == find_hardware("rtx4090")
    assert find_hardware("NVIDIA L40S") == find_hardware("l40s")
    assert find_hardware("NVIDIA A100-SXM4-80GB") == find_hardware("a100")
    assert find_hardware("Radeon") is None


def test_a_card_of_a_like_name_is_another() -> None:
    likes = ("RTX 4070 Ti", "RTX 4080 SUPER", "RTX 4090 D", "RTX 4090 Laptop GPU")
    for product in (*(f"NVIDIA GeForce {one}" for one in likes), "NVIDIA T400", "NVIDIA L40"):
        assert find_hardware(product) is None, product
