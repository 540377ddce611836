"""The newer sections of a job file: models, kinds, fits, samples, sizes, what has no effect."""

from pathlib import Path

import pytest

from evenload._memory_sizes import gib_text, parse_size, size_text
from evenload.errors import SpecError
from evenload.pipeline.job.builtin_stages import BUILTIN_STAGES
from evenload.pipeline.job.job_file import parse_spec, spec_text
from evenload.pipeline.target import locate_target

HEAD = "version: 1\njob: {name: test, inputs: {folder: .}}\n"
OPEN = "target: 'stages.py:Open'"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "stages.py").write_text(
        "class Open:\n"
        "    def __init__(self, context, **a): ...\n"
        "    def __call__(self, inputs, item, **a): ...\n"
    )
    (tmp_path / "model").mkdir()
    return tmp_path


def spec_of(folder: Path, stages: str, more: str = ""):
    return parse_spec(f"{HEAD}stages:\n{stages}\n{more}", folder)


def faults_of(folder: Path, stages: str, more: str = "") -> dict[str, str]:
    with pytest.raises(SpecError) as caught:
        spec_of(folder, stages, more)
    return {place.partition(" (")[0]: text for place, text in caught.value.faults}


@pytest.mark.parametrize("name", BUILTIN_STAGES)
def test_every_kind_is_a_class_that_is_there(name: str) -> None:
    assert locate_target(BUILTIN_STAGES[name].target, Path())


def test_a_kind_fills_in_its_target_and_wants_its_model(folder: Path) -> None:
    stage = spec_of(folder, "  - {name: a, kind: image_edit, model: {path: model}}").stages[0]
    assert stage.target == BUILTIN_STAGES["image_edit"].target
    found = faults_of(folder, "  - {name: a, kind: image_edit}\n  - {name: b, kind: image_edti}")
    assert "required for kind image_edit" in found["stages[0].model"]
    assert "did you mean 'image_edit'" in found["stages[1].kind"]
    assert "not both" in faults_of(folder, f"  - {{name: a, kind: command, {OPEN}}}")["stages[0].target"]
    assert "or give kind" in faults_of(folder, "  - {name: a}")["stages[0].target"]


def test_models_must_be_there_unless_their_config_is(folder: Path) -> None:
    assert (
        "no folder"
        in faults_of(folder, f"  - {{name: a, {OPEN}, model: {{path: gone}}}}")["stages[0].model.path"]
    )
    named = faults_of(folder, f"  - {{name: a, {OPEN}, model: {{path: own/gone}}}}")["stages[0].model.path"]
    assert "hf download own/gone" in named
    there = spec_of(folder, f"  - {{name: a, {OPEN}, model: {{path: gone, config: model}}}}")
    assert there.stages[0].model is not None
    odd = faults_of(folder, f"  - {{name: a, {OPEN}, model: {{path: gone, config: gone}}}}")
    assert "no folder" in odd["stages[0].model.config"]


def test_lossy_fits_must_be_allowed(folder: Path) -> None:
    stage = f"  - {{name: a, {OPEN}, fit: [whole, fp8]}}"
    assert "allow_lossy: true" in faults_of(folder, stage)["stages[0].fit"]
    assert spec_of(folder, stage, "devices: {allow_lossy: true}").stages[0].fit == ("whole", "fp8")
    assert (
        "at most once" in faults_of(folder, f"  - {{name: a, {OPEN}, fit: [whole, whole]}}")["stages[0].fit"]
    )


def test_samples_need_a_choice_and_a_choice_needs_samples(folder: Path) -> None:
    make, judge = f"  - {{name: a, {OPEN}, samples: 4}}", f"  - {{name: b, {OPEN}, best: {{by: score}}}}"
    assert spec_of(folder, f"{make}\n{judge}").stages[1].best is not None
    assert "no samples to choose from" in faults_of(folder, judge)["stages[0].best"]
    twice = faults_of(folder, f"{make}\n  - {{name: c, {OPEN}, samples: 2}}")
    assert "makes samples already" in twice["stages[1].samples"]


def test_conditions_and_interpreters_are_checked(folder: Path) -> None:
    found = faults_of(
        folder, f"  - {{name: a, {OPEN}, when: 'score >'}}\n  - {{name: b, {OPEN}, python: venv/bin/python}}"
    )
    assert "a value is expected" in found["stages[0].when"]
    assert "no interpreter" in found["stages[1].python"]


def test_sizes_want_their_unit(folder: Path) -> None:
    stage = f"  - {{name: a, {OPEN}, estimate: {{activation: 2.5GiB}}}}"
    spec = spec_of(folder, stage, "devices: {reserve: 512MiB, limits: {'cuda:0': 22 GB}, host: 1TiB}")
    assert spec.devices.reserve == 2**29
    assert spec.devices.limits == {"cuda:0": 22 * 10**9}
    assert spec.stages[0].estimate.activation == int(2.5 * 2**30)
    assert parse_spec(spec_text(spec), folder) == spec
    assert "a number and its unit" in faults_of(folder, stage, "devices: {reserve: 1}")["devices.reserve"]
    assert "a number and its unit" in faults_of(folder, stage, "devices: {host: 3 apples}")["devices.host"]


@pytest.mark.parametrize("n_bytes", [0, 1, 1023, 1024, 3 * 2**30, 24 * 10**9, 2**40])
def test_sizes_read_back(n_bytes: int) -> None:
    assert parse_size(size_text(n_bytes)) == n_bytes


def test_sizes_are_shown_in_gib() -> None:
    sizes = (41.4 * 2**30, 22.34 * 2**30, 2**29, 2**20, 512)
    assert [gib_text(n_bytes) for n_bytes in sizes] == [
        "41.4 GiB",
        "22.3 GiB",
        "512 MiB",
        "1.0 MiB",
        "0 KiB",
    ]


def test_settings_without_effect_are_told(folder: Path) -> None:
    call = "call: {true_cfg_scale: 4.0}"
    spec = spec_of(folder, f"  - {{name: a, {OPEN}, {call}, batch: 2}}", "report: {sort: score}")
    said = "\n".join(spec.notes)
    assert "does nothing without a negative_prompt" in said
    assert "may change the last bits" in said
    assert "no declared output" in said
    quiet = spec_of(folder, f"  - {{name: a, {OPEN}, call: {{true_cfg_scale: 4.0, negative_prompt: ' '}}}}")
    assert quiet.notes == ()
