"""Model folders that are not whole are found before anything starts, and all of their faults at once."""

import json
import struct
from pathlib import Path

import pytest

from evenload.devices import DevicePool
from evenload.errors import FormatError, NoUsableDevice
from evenload.pipeline import Pipeline
from evenload.pipeline.job.model_files import faults_of_model
from evenload.pipeline.run.machines.fleet import RunFleet

JOB = """\
version: 1
job: {name: t, inputs: {jsonl: rows.jsonl}}
devices: cpu*1
stages:
  - {name: first, kind: vlm_score, model: &model {path: models/m}, params: &images {images: [path]}}
  - {name: second, kind: vlm_score, model: *model, params: *images}
"""


def shard(path: Path, n_bytes: int = 16) -> Path:
    header = json.dumps({"w": {"dtype": "F32", "shape": [n_bytes // 4], "data_offsets": [0, n_bytes]}})
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + b"\0" * n_bytes)
    return path


@pytest.fixture
def job(tmp_path: Path) -> Path:
    model = tmp_path / "models/m"
    model.mkdir(parents=True)
    (model / "config.json").write_text('{"architectures": ["X"]}')
    names = {f"w{n}": f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)}
    for name in names.values():
        shard(model / name)
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    (tmp_path / "rows.jsonl").write_text('{"id": "a", "path": "a.png", "instruction": "x"}\n')
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path / "job.yaml"


def test_a_whole_model_has_no_faults(job: Path) -> None:
    assert faults_of_model(job.parent / "models/m") == []


def test_every_fault_is_told_before_there_is_a_run_folder(job: Path) -> None:
    model = job.parent / "models/m"
    (model / "model-00001-of-00003.safetensors").unlink()
    cut = model / "model-00002-of-00003.safetensors"
    cut.write_bytes(cut.read_bytes()[:-3])
    (model / "generation_config.json").write_text("{")
    (model / "model-00003-of-00003.safetensors").unlink()
    (model / "model-00003-of-00003.safetensors").symlink_to("gone")
    with pytest.raises(FormatError) as caught:
        Pipeline.from_yaml(job).run(backend="inline")
    told = str(caught.value)
    assert told.count("\n  first, second: ") == 4
    assert "model-00002-of-00003.safetensors is damaged: " in told
    assert "cut or is still being copied" in told
    assert "lacks model-00001-of-00003.safetensors, model-00003-of-00003.safetensors, of 3 parts" in told
    assert "generation_config.json is damaged: " in told
    assert not (job.parent / "runs").exists()
    with pytest.raises(FormatError):
        Pipeline.from_yaml(job).plan()


@pytest.mark.parametrize(
    ("content", "said"), [("[]", "is damaged"), ('{"weight_map": 3}', "is damaged"), ("{}", "is damaged")]
)
def test_an_index_that_is_none(job: Path, content: str, said: str) -> None:
    model = job.parent / "models/m"
    (model / "model.safetensors.index.json").write_text(content)
    (fault,) = faults_of_model(model)
    assert said in fault


def test_an_index_of_a_format_that_was_left_out_is_no_fault(job: Path) -> None:
    (model,) = job.parent.rglob("model.safetensors.index.json")
    other = model.with_name("pytorch_model.bin.index.json")
    other.write_text(json.dumps({"weight_map": {"a": "pytorch_model-00001-of-00001.bin"}}))
    assert faults_of_model(model.parent) == []
    for part in model.parent.glob("*.safetensors"):
        part.unlink()
    assert len(faults_of_model(model.parent)) == 3


def test_a_folder_without_weights(tmp_path: Path) -> None:
    assert "holds no weights (it holds nothing)" in faults_of_model(tmp_path)[0]
    (tmp_path / "config.json").write_text("{}")
    assert "holds no weights (it holds config.json)" in faults_of_model(tmp_path)[0]
    assert faults_of_model(tmp_path, needs_weights=False) == []


def test_models_do_not_run_on_the_cpu_unless_it_is_named(job: Path) -> None:
    spec = Pipeline.from_yaml(job).spec
    with DevicePool.discover() as machine:
        pool = machine.select("cpu*2")
        for use in ("all", 2, "cpu*2", ["cpu:0"]):
            fleet = RunFleet(use, "inline")
            fleet.pool = pool
            if fleet.may_use_cpu:
                fleet.refuse_cpu(spec.stages)
                continue
            with pytest.raises(NoUsableDevice, match="first, second landed on the CPU") as caught:
                fleet.refuse_cpu(spec.stages)
    assert "--devices cpu" in str(caught.value)
