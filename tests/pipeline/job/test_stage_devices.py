"""Which stages may run where, as the job says it: the grammar of --devices, within the devices of the run."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.errors import SpecError
from evenload.pipeline.job.job_file import load_spec, parse_spec
from evenload.pipeline.job.stage_devices import barred_stages
from evenload.pipeline.job.yaml_text import Origins

CLUSTER = ["east/cuda:1", "cuda:0", "west/cpu:0", "east/cuda:0", "cpu:0"]
GPUS = ["cuda:1", "cuda:0", "cuda:2"]
JOB = """\
version: 1
job: {name: job, inputs: {jsonl: rows.jsonl}}
stages:
  - {name: draw, target: "json.decoder:JSONDecoder"}
  - name: score
    target: "json.decoder:JSONDecoder"
    devices: DEVICES
"""


def spec_of(*given_devices: Any) -> Any:
    stages = [SimpleNamespace(name=f"s{at}", devices=one) for at, one in enumerate(given_devices)]
    return SimpleNamespace(stages=stages, origins=Origins())


def allowed(devices: Any, pool: list[str]) -> list[str]:
    barred = barred_stages(spec_of(devices), pool)
    assert sorted(barred) == sorted(pool)
    return sorted(one for one in pool if "s0" not in barred[one])


@pytest.mark.parametrize(
    ("devices", "pool", "expected"),
    [
        (None, GPUS, sorted(GPUS)),
        ("all", [*GPUS, "cpu:0"], sorted([*GPUS, "cpu:0"])),
        ("cuda:0", GPUS, ["cuda:0"]),
        ("cuda:0,2", GPUS, ["cuda:0", "cuda:2"]),
        (" CUDA:0 , 2", GPUS, ["cuda:0", "cuda:2"]),
        ("cuda", [*GPUS, "cpu:0"], sorted(GPUS)),
        ("gpu", [*GPUS, "cpu:0"], sorted(GPUS)),
        ("cpu", [*GPUS, "cpu:0", "cpu:1"], ["cpu:0", "cpu:1"]),
        ("cpu", ["cuda:0", "cpu:0"], ["cpu:0"]),
        ("cpu*2", ["cpu:0", "cpu:1", "cpu:2"], ["cpu:0", "cpu:1"]),
        (1, GPUS, ["cuda:1"]),
        ("2", GPUS, ["cuda:0", "cuda:1"]),
        (2, ["cpu:0", "cpu:1", "cpu:2"], ["cpu:0", "cpu:1"]),
        ("cuda:1,cpu", [*GPUS, "cpu:0"], ["cpu:0", "cuda:1"]),
        ("east/cuda:0", CLUSTER, ["east/cuda:0"]),
        ("east/cuda:0,1", CLUSTER, ["east/cuda:0", "east/cuda:1"]),
        ("cuda:0", CLUSTER, ["cuda:0"]),
        ("cuda:0,east/cuda:1", CLUSTER, ["cuda:0", "east/cuda:1"]),
        ("cuda", CLUSTER, ["cuda:0", "east/cuda:0", "east/cuda:1"]),
        ("west/cpu", CLUSTER, ["west/cpu:0"]),
        ("cpu", CLUSTER, ["cpu:0", "west/cpu:0"]),
        (2, CLUSTER, ["cuda:0", "east/cuda:1"]),
        (1, ["west/cpu:0", "east/cpu:0"], ["west/cpu:0"]),
    ],
)
def test_the_grammar_of_devices_within_those_of_the_run(devices: Any, pool: list[str], expected) -> None:
    assert allowed(devices, pool) == expected


@pytest.mark.parametrize(
    ("devices", "pool"),
    [
        ("cuda:3", GPUS), ("cpu", GPUS), ("mps", GPUS), ("cuda", ["cpu:0"]), ("cuda:0", ["cpu:0"]),
        ("west/cuda:0", CLUSTER), ("north/cuda:0", CLUSTER), ("east/cuda:2", CLUSTER), (4, CLUSTER),
        ("cuda:0", ["east/cuda:0"]), ("mps", CLUSTER), ("west/cpu:0", ["cpu:0"]), ("west/cpu", ["cpu:0"]),
        ("cpu*3", ["cpu:0"]), ("cpu:1", ["cpu:0"]), (4, GPUS), (3, ["cpu:0", "cpu:1"]), ("nvidia", GPUS),
    ],
)  # fmt: skip
def test_a_device_that_takes_no_part_is_refused_and_those_that_do_are_named(devices: Any, pool: list[str]):
    with pytest.raises(SpecError) as refused:
        barred_stages(spec_of(None, devices), pool)
    ((place, said),) = refused.value.faults
    assert place == "stages[1].devices"
    assert pool[0] in said


@given(
    st.lists(
        st.sampled_from([*GPUS, "cpu:0", "cpu:1", "east/cuda:0", "west/cpu:0"]), min_size=1, unique=True
    ),
    st.data(),
)
def test_each_stage_is_barred_from_all_but_what_it_names(pool: list[str], data) -> None:
    wanted = [
        data.draw(st.none() | st.lists(st.sampled_from(pool), min_size=1, unique=True)) for _ in range(3)
    ]
    barred = barred_stages(spec_of(*(",".join(one) if one else one for one in wanted)), pool)
    for device in pool:
        assert barred[device] == {f"s{at}" for at, one in enumerate(wanted) if one and device not in one}


@pytest.mark.parametrize(
    "devices",
    ["cuda:0,", "east/", "east/cuda-0", "'0'", "cuda:0*x", "'*'", "cuda-0", "[1]", "true", "-1", "1.5"],
)
def test_what_is_no_name_of_devices_is_a_fault_with_its_line(tmp_path: Path, devices: str) -> None:
    (tmp_path / "rows.jsonl").write_text('{"id": "a"}\n')
    with pytest.raises(SpecError) as refused:
        parse_spec(JOB.replace("DEVICES", devices), tmp_path)
    assert any(place.startswith("stages[1].devices") for place, _ in refused.value.faults)
    assert all("(line 7)" in place for place, _ in refused.value.faults)


def test_a_device_that_is_not_there_is_told_with_the_line_of_the_job(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"id": "a"}\n')
    (tmp_path / "job.yaml").write_text(JOB.replace("DEVICES", "cuda:7"))
    spec = load_spec(tmp_path / "job.yaml")
    with pytest.raises(SpecError, match=r"stages\[1\].devices \(line 7\): 'cuda:7' is not among"):
        barred_stages(spec, ["cuda:0", "cpu:0"])
    changed = load_spec(tmp_path / "job.yaml", ["stages.score.devices=cuda:8"])
    with pytest.raises(SpecError, match=r"--set stages.score.devices=cuda:8"):
        barred_stages(changed, ["cuda:0"])
