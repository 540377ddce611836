"""Older keys become today's, each with a note; what is not understood is a fault, not silence."""

from pathlib import Path

import pytest

from evenload.errors import SpecError
from evenload.pipeline.job.job_file import parse_spec

JOB = """\
version: 1
job: {name: test, inputs: {folder: .}}
stages: [{name: one, target: 'stages.py:Open'}]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "stages.py").write_text(
        "class Open:\n"
        "    def __init__(self, context, **a): ...\n"
        "    def __call__(self, inputs, item, **a): ...\n"
    )
    return tmp_path


@pytest.mark.parametrize(
    ("params", "use", "mode", "notes"),
    [
        ("{device: cuda}", "cuda:0", "auto", ["device: cuda is now devices.use: cuda:0"]),
        ("{device: 'cuda:2'}", "cuda:2", "auto", ["now devices.use: cuda:2"]),
        ("{device: auto, use_device_map: true}", "all", "model_parallel", ["use_device_map", "device: auto"]),
        (
            "{device_ids: [0, 1, 5], parallel_mode: data_parallel, num_workers: 3}",
            "cuda:0,1,5",
            "data_parallel",
            ["parallel_mode", "device_ids", "num_workers: 3 has no effect"],
        ),
        ("{num_workers: 4}", 4, "auto", ["now devices.use: 4"]),
        (
            "{device: cuda, parallel_mode: data_parallel}",
            "cuda",
            "data_parallel",
            ["parallel_mode", "now devices.use: cuda"],
        ),
        ("{device: cuda, num_workers: 2}", 2, "auto", ["devices.use: cuda:0", "devices.use: 2"]),
        ("{use_device_map: false}", "all", "auto", ["happens anyway"]),
    ],
)
def test_each_key_is_converted_and_explained(folder: Path, params, use, mode, notes) -> None:
    spec = parse_spec(f"{JOB}diffusion_model: {{params: {params}}}\n", folder)
    assert (spec.devices.use, spec.schedule.mode) == (use, mode)
    assert len(spec.notes) == len(notes)
    for note in notes:
        assert any(note in said for said in spec.notes), spec.notes


def test_the_newer_key_counts(folder: Path) -> None:
    text = JOB + "devices: cpu\ndiffusion_model: {params: {device_ids: [0]}}\n"
    spec = parse_spec(text, folder)
    assert spec.devices.use == "cpu"
    assert "has no effect: devices.use is cpu" in spec.notes[0]


@pytest.mark.parametrize(
    ("section", "place", "said"),
    [
        ("{params: {parallel_mode: both}}", "diffusion_model.params.parallel_mode", "'both' is not known"),
        (
            "{params: {parallel_mode: pipeline}}",
            "diffusion_model.params.parallel_mode",
            "mode: stage_parallel",
        ),
        ("{params: {device_ids: 0}}", "diffusion_model.params.device_ids", "use a list"),
        ("{params: {device_ids: [true]}}", "diffusion_model.params.device_ids", "use a list"),
        ("{params: {num_workers: 0}}", "diffusion_model.params.num_workers", "from 1"),
        ("{params: {device: 0}}", "diffusion_model.params.device", "use cuda"),
        ("{params: {use_device_map: 3}}", "diffusion_model.params.use_device_map", "true or false"),
        ("{params: {model_name: x}}", "diffusion_model.params.model_name", "not understood"),
        ("{type: qwen}", "diffusion_model.type", "not understood"),
        ("3", "diffusion_model", "older section"),
    ],
)
def test_what_is_not_understood_is_a_fault(folder: Path, section: str, place: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(f"{JOB}diffusion_model: {section}\n", folder)
    ((found, text),) = caught.value.faults
    assert found == f"{place} (line 4)"
    assert said in text
