"""Tests the stages that ship through pipelines of tiny models: bytes, scores, and what is said of damage."""

import shutil
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evenload.errors import ConfigError, FormatError
from evenload.pipeline.file_types import encode_artifact
from evenload.pipeline.plan import Fit
from evenload.pipeline.stage import Item, ModelFolder, StageContext

torch = pytest.importorskip("torch")
with suppress(ImportError):  # read here, once for all workers of the runner, which are forked
    from diffusers import QwenImageEditPlusPipeline  # noqa: F401

CPU = SimpleNamespace(id="cpu:0", torch="cpu")
CALL = {"num_inference_steps": 2, "true_cfg_scale": 4.0}
GUIDED = {**CALL, "negative_prompt": " "}


def context(folder: Path, model: str | None, **more: Any) -> StageContext:
    return StageContext("one", CPU, folder, 0, ModelFolder(model) if model else None, **more)


def item(number: int) -> Item:
    return Item(number, f"p{number}", 1000 + number)


@pytest.fixture(scope="module")
def pictures(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    from evenload.pipeline.stages import tiny

    folder = tmp_path_factory.mktemp("pictures")
    sizes = [(96, 64), (64, 64), (50, 90)]
    for number, (width, height) in enumerate(sizes):
        tiny.picture(number, width, height).save(folder / f"p{number}.png")
    return [{"path": str(folder / f"p{n}.png"), "instruction": f"make the sky red {n}"} for n in range(3)]


def png(outputs: Mapping[str, Any]) -> bytes:
    return encode_artifact(outputs["edited"], "png")


def whole(tiny_models: Path, model: str, pictures: list[dict], call: dict) -> list[bytes]:
    from evenload.pipeline.stages.image_edit import ImageEdit

    stage = ImageEdit(context(tiny_models, model))
    return [png(stage(inputs, item(n), **call)) for n, inputs in enumerate(pictures)]


@pytest.fixture(scope="module")
def expected(tiny_models: Path, pictures: list) -> list[bytes]:
    """What the whole model makes of the pictures with guidance."""
    return whole(tiny_models, "edit", pictures, GUIDED)


def split(
    tiny_models: Path, model: str, pictures: list[dict], call: dict, tmp: Path, **fit: Any
) -> list[bytes]:
    from evenload.pipeline.stages.image_edit import Decode, Denoise, Encode

    encode, decode = Encode(context(tiny_models, model)), Decode(context(tiny_models, model))
    denoise = Denoise(context(tiny_models, model, **fit))
    made = []
    for number, picture in enumerate(pictures):
        inputs = dict(picture)
        for name, stage in (("embeds", encode), ("latents", denoise)):
            file = tmp / f"{name}-{number}.safetensors"
            file.write_bytes(encode_artifact(stage(inputs, item(number), **call)[name], "safetensors"))
            inputs[name] = str(file)
        made.append(png(decode(inputs, item(number))))
    return made


@pytest.mark.parametrize("model", ["edit", "plus"])
def test_whole_is_split_byte_for_byte(
    tiny_models: Path, pictures: list, expected: list[bytes], tmp_path: Path, model: str
) -> None:
    call = GUIDED if model == "edit" else {"num_inference_steps": 2, "true_cfg_scale": 1.0}
    made = expected if model == "edit" else whole(tiny_models, model, pictures, call)
    assert len(set(made)) == 3
    assert split(tiny_models, model, pictures, call, tmp_path) == made


@pytest.mark.parametrize(
    ("fit", "n_devices"), [(Fit("layer_split", 2, (1, 1)), 2), (Fit("resident_stream", resident_blocks=1), 1)]
)
def test_however_the_layers_are_held_the_bytes_are_equal(
    tiny_models: Path, pictures: list, expected: list[bytes], tmp_path: Path, fit: Fit, n_devices: int
) -> None:
    assert split(tiny_models, "edit", pictures, GUIDED, tmp_path, fit=fit, n_devices=n_devices) == expected


def test_eight_bits_change_the_picture(
    tiny_models: Path, pictures: list, expected: list[bytes], tmp_path: Path
) -> None:
    held = split(tiny_models, "edit", pictures[:1], GUIDED, tmp_path, fit=Fit("fp8"))
    assert held != expected[:1]


def test_items_in_flight_do_not_spoil_one_another(
    tiny_models: Path, pictures: list, expected: list[bytes]
) -> None:
    """Shared schedulers raise, shared VAEs change pictures without a word: each lane has its own."""
    from evenload.pipeline.stages.image_edit import ImageEdit

    first = ImageEdit(context(tiny_models, "edit", fit=Fit("layer_split", 3), n_devices=3))
    lanes = [first, first.lane(), first.lane()]
    assert lanes[1]._pipe.transformer is first._pipe.transformer
    assert lanes[1]._pipe.vae is not first._pipe.vae
    wrong: list[Any] = []

    def work(lane: ImageEdit) -> None:
        for number in range(3):
            made = png(lane(pictures[number], item(number), **GUIDED))
            if made != expected[number]:
                wrong.append(number)

    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    try:
        threads = [threading.Thread(target=work, args=(lane,)) for lane in lanes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=500)
    finally:
        sys.setswitchinterval(before)
    assert not wrong


def test_several_pictures_for_edit_plus(tiny_models: Path, pictures: list) -> None:
    from evenload.pipeline.stages.image_edit import ImageEdit

    stage = ImageEdit(context(tiny_models, "plus"), image=["path", "other"])
    inputs = {**pictures[0], "other": pictures[1]["path"]}
    assert png(stage(inputs, item(0), **CALL)) != png(
        stage({**inputs, "other": inputs["path"]}, item(0), **CALL)
    )


def test_other_pipelines_of_diffusers(tiny_models: Path, pictures: list) -> None:
    from evenload.pipeline.stages.diffusion import ImageToImage

    stage = ImageToImage(context(tiny_models, "edit"), prompt="instruction")
    small = {**CALL, "height": 64, "width": 64}
    from evenload.pipeline.stages import image_edit

    image_edit._let_area_change(type(stage._pipe))
    with image_edit._working_on(64 * 64):
        first = stage(pictures[0], item(0), **small)["picture"]
        again = stage.lane()(pictures[0], item(0), **small)["picture"]
    assert first.size == (64, 64)
    assert encode_artifact(first, "png") == encode_artifact(again, "png")
    with pytest.raises(ConfigError, match="no column 'instruction'"):
        stage({"path": pictures[0]["path"]}, item(0))


def test_scores_are_expected_digits(tiny_models: Path, pictures: list) -> None:
    from evenload.pipeline.stages.vlm_score import VlmScore, expected_score

    stage = VlmScore(context(tiny_models, "scorer"))
    inputs = [{**pictures[n], "edited": pictures[(n + 1) % 3]["path"]} for n in range(3)]
    scores = [stage(one, item(0))["score"] for one in inputs]
    assert scores == [stage(one, item(7))["score"] for one in inputs]
    assert len(set(scores)) == 3
    assert all(0 <= score <= 9 for score in scores)
    assert expected_score(torch.tensor([-1e9] * 7 + [3.0, 3.0, -1e9])) == pytest.approx(7.5)
    with pytest.raises(ConfigError, match="'instruction', which the item does not have"):
        stage({"path": inputs[0]["path"], "edited": inputs[0]["path"]}, item(0))


def test_likeness_to_a_text_and_to_a_picture(tiny_models: Path, pictures: list) -> None:
    from evenload.pipeline.stages.clip_score import ClipScore

    same = ClipScore(context(tiny_models, "clip"), image="path", other="path")(pictures[0], item(0))
    assert same["similarity"] == 1.0
    text = ClipScore(context(tiny_models, "clip"), image="path", text="instruction")(pictures[0], item(0))
    assert -1 <= text["similarity"] <= 1
    with pytest.raises(ConfigError, match="another image"):
        ClipScore(context(tiny_models, "clip"))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (shutil.rmtree, "there is no folder"),
        (lambda model: (model / "model_index.json").unlink(), r"no model_index.json \(it holds"),
        (lambda model: cut(*(model / "transformer").glob("*.safetensors")), "is damaged: .* cut or is still"),
        (lambda model: shutil.rmtree(model / "vae"), "cannot be loaded"),
        (lambda model: (model / "model_index.json").write_text("{"), "model_index.json cannot be read"),
    ],
)
def test_a_damaged_model_is_named(
    tiny_models: Path, tmp_path: Path, damage: Callable[[Path], object], said: str
) -> None:
    from evenload.pipeline.stages.image_edit import ImageEdit

    shutil.copytree(tiny_models / "edit", tmp_path / "edit")
    damage(tmp_path / "edit")
    with pytest.raises((ConfigError, FormatError), match=said) as caught:
        ImageEdit(context(tmp_path, "edit"))
    assert str(tmp_path) in str(caught.value)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def test_a_model_of_another_kind_and_one_that_landed_on_the_cpu(tiny_models: Path) -> None:
    from evenload.pipeline.stages.image_edit import ImageEdit

    with pytest.raises(FormatError, match="is no diffusers pipeline"):
        ImageEdit(context(tiny_models, "scorer"))
    with pytest.raises(ConfigError, match="landed on the CPU") as caught:
        ImageEdit(context(tiny_models, "edit", may_use_cpu=False))
    assert "devices: cpu" in str(caught.value)


def test_the_dtype_is_that_of_the_files_or_the_one_asked_for(tiny_models: Path, tmp_path: Path) -> None:
    from evenload.pipeline.stages.loading import load_model

    asked = StageContext("one", CPU, tiny_models, 0, ModelFolder("scorer", "bfloat16"))
    model, _ = load_model(asked, auto_class="AutoModelForImageTextToText")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    model.save_pretrained(tmp_path / "half")
    stored, _ = load_model(context(tmp_path, "half"), auto_class="AutoModelForImageTextToText")
    assert {parameter.dtype for parameter in stored.parameters()} == {torch.bfloat16}
    with pytest.raises(ConfigError, match="dtype 'int77' is none"):
        load_model(
            StageContext("one", CPU, tiny_models, 0, ModelFolder("scorer", "int77")),
            auto_class="AutoModelForImageTextToText",
        )


def test_a_torch_module_and_a_function(tmp_path: Path, tiny_models: Path, pictures: list) -> None:
    from safetensors.torch import save_file

    from evenload.pipeline.stages.function import Function
    from evenload.pipeline.stages.torch_module import TorchModule

    (tmp_path / "own.py").write_text(
        "import torch\n"
        "class Darker(torch.nn.Module):\n"
        "    def __init__(self, by=1.0):\n"
        "        super().__init__(); self.by = torch.nn.Parameter(torch.tensor(by))\n"
        "    def forward(self, x): return x * self.by\n"
        "def length(inputs, item, more=0): return len(inputs['instruction']) + more\n"
    )
    save_file({"by": torch.tensor(0.5)}, tmp_path / "w.safetensors")
    stage = TorchModule(
        context(tmp_path, None), module="own.py:Darker", weights="w.safetensors", output="dark"
    )
    dark = stage(pictures[0], item(0))["dark"]
    assert dark.shape == (64, 96, 3)
    assert dark.max() <= 0.5
    together = stage.batch([pictures[0], pictures[0]], [item(0), item(1)])
    assert all((one["dark"] == dark).all() for one in together)
    with pytest.raises(ConfigError, match="there is no file"):
        TorchModule(context(tmp_path, None), module="own.py:Darker", weights="none.safetensors")
    (tmp_path / "w.safetensors").write_bytes(b"1234")
    with pytest.raises(FormatError, match=r"no weights that can be read|holds no tensors"):
        TorchModule(context(tmp_path, None), module="own.py:Darker", weights="w.safetensors")
    counted = Function(context(tmp_path, None), function="own.py:length", output="n")
    assert counted(pictures[0], item(0), more=1) == {"n": len(pictures[0]["instruction"]) + 1}


def test_a_command_line_tool(tmp_path: Path, pictures: list) -> None:
    from evenload.pipeline.stages.command import Command

    script = tmp_path / "tool.py"
    script.write_text(
        "import json, shutil, sys\n"
        "shutil.copy(sys.argv[1], sys.argv[2]); print(json.dumps({'seed_seen': int(sys.argv[3])}))\n"
    )
    words = [sys.executable, str(script), "{path}", "{out.copy}", "{seed}"]
    stage = Command(context(tmp_path, None), run=words, files={"copy": "png"}, reads_json=True)
    outputs = stage(pictures[0], item(3))
    assert encode_artifact(outputs["copy"], "png") == Path(pictures[0]["path"]).read_bytes()
    assert outputs["seed_seen"] == 1003
    with pytest.raises(ConfigError, match="which the item does not have"):
        stage({}, item(0))
    failing = Command(context(tmp_path, None), run=[sys.executable, "-c", "import sys; sys.exit('no luck')"])
    with pytest.raises(RuntimeError, match=r"exit code 1: no luck"):
        failing({}, item(0))
    with pytest.raises(ConfigError, match="there is no program"):
        Command(context(tmp_path, None), run=["no-such-tool"])
    silent = Command(context(tmp_path, None), run=[sys.executable, "-c", ""], files={"x": "txt"})
    with pytest.raises(ConfigError, match="wrote no file"):
        silent({}, item(0))
