"""A trace on fake tensors sees the bytes that the real class takes, and needs neither weights nor time."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from evenload.pipeline.planning.estimates.work_estimate import (
    estimate_work,
    peak_tensor_bytes,
    trace_activation_bytes,
)

pytestmark = pytest.mark.skipif(find_spec("diffusers") is None, reason="needs the extra models")

CONFIGS = Path(__file__).parents[4] / "examples/edit-and-score/configs/qwen-image-edit"
GIB = 2**30


def test_bytes_that_live_at_once() -> None:
    def run() -> None:
        a = torch.zeros(1000)
        b = a + 1
        del a
        c = b.view(10, 100) + 1
        del b
        assert c.sum() == 2000

    assert peak_tensor_bytes(run) == 8000
    weight = torch.zeros(1000)
    assert peak_tensor_bytes(lambda: weight.view(10, 100), [weight]) == 0
    assert peak_tensor_bytes(lambda: None) == 0


def test_a_trace_is_the_run_without_the_bytes(tiny_models: Path) -> None:
    from diffusers import AutoencoderKLQwenImage

    edit = tiny_models / "edit"
    config = json.loads((edit / "vae/config.json").read_text())
    area = 64 * 64
    traced = trace_activation_bytes("AutoencoderKLQwenImage", config, {"area": area}, config, "float32")
    vae = AutoencoderKLQwenImage.from_pretrained(edit / "vae")
    weights = [*vae.parameters(), *vae.buffers()]
    side = 64 // 2 ** len(config["temperal_downsample"])
    latents = torch.randn(1, config["z_dim"], 1, side, side)
    with torch.no_grad():
        assert peak_tensor_bytes(lambda: vae.decode(latents, return_dict=False), weights) == traced["decode"]
    assert torch.get_default_dtype() == torch.float32
    with pytest.raises(ValueError, match="cannot be traced"):
        trace_activation_bytes("CLIPModel", {}, {}, {}, "float32")


@pytest.mark.slow
def test_formulas_are_near_traces_of_the_real_models() -> None:
    vae = json.loads((CONFIGS / "vae/config.json").read_text())
    transformer = json.loads((CONFIGS / "transformer/config.json").read_text())
    forward = trace_activation_bytes("QwenImageTransformer2DModel", transformer, {}, vae, "bfloat16")[
        "forward"
    ]
    coded = trace_activation_bytes("AutoencoderKLQwenImage", vae, {}, vae, "bfloat16")
    assert forward == pytest.approx(0.76 * GIB, rel=0.02)
    assert coded["decode"] == pytest.approx(3.38 * GIB, rel=0.01)
    for decodes, peak in ((True, coded["decode"]), (False, coded["encode"])):
        work = estimate_work("QwenImageTransformer2DModel", transformer, {"decodes": decodes}, vae)
        assert work is not None
        assert work.activation_bytes == pytest.approx(max(forward, peak), rel=0.1)
