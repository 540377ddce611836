"""Every fault of a job file is found at once, with its path, its line and what to write instead."""

import json
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from evenload._memory_sizes import gib_text, parse_size, size_text
from evenload.errors import ConfigError, SpecError
from evenload.pipeline.job.builtin_stages import BUILTIN_STAGES
from evenload.pipeline.job.job_file import json_schema, load_spec, parse_spec, spec_text
from evenload.pipeline.target import locate_target

STAGES = """
import math

class Brighten:
    def __init__(self, context, *, by=0.1, gamma):
        self.by = by

    def __call__(self, inputs, item, *, steps=1):
        return {}

class Open:
    def __init__(self, context, **anything): ...
    def __call__(self, inputs, item, **anything): return {}

class Deaf: ...

class Hasty:
    def __init__(self, wait=1.0): ...
    def __call__(self, inputs, item): return {}

def figures(rows): return {}
"""
OPEN = "target: 'stages.py:Open'"
JOB = """\
version: 1
job:
  name: test
  inputs: {folder: pictures}
stages:
  - name: one
    target: stages.py:Brighten
    params: {gamma: 2}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "stages.py").write_text(STAGES)
    (tmp_path / "pictures").mkdir()
    return tmp_path


def faults_of(text: str, folder: Path, changes: tuple[str, ...] = ()) -> dict[str, str]:
    with pytest.raises(SpecError) as caught:
        parse_spec(text, folder, changes=changes)
    return dict(caught.value.faults)


def test_all_faults_at_once_with_path_line_and_nearest(folder: Path) -> None:
    found = faults_of(
        """\
version: 2
job:
  nam: test
  inputs: {folder: nowhere}
  seed: -1
stages:
  - name: one
    taget: stages.py:Brighten
  - name: two
    target: stages.py:Brigten
    outputs: {picture: pgn}
  - name: three
    target: stages.py:Brighten
    params: {gama: 1}
    call: {step: 2}
schedule: {policy: mesured}
errors: {on_error: recrod, retries: many}
report: {headline: stages.py:figure}
""",
        folder,
    )
    assert found["version (line 1)"] == "2 is not known; use 1"
    assert found["job.name (line 2)"] == "is required and not given"
    assert "did you mean 'name'?" in found["job.nam (line 3)"]
    assert str(folder / "nowhere") in found["job.inputs.folder (line 4)"]
    assert "greater than or equal to 0" in found["job.seed (line 5)"]
    assert "did you mean 'target'?" in found["stages[0].taget (line 8)"]
    assert "did you mean 'Brighten'?" in found["stages[1].target (line 10)"]
    assert "did you mean 'png'?" in found["stages[1].outputs.picture (line 11)"]
    assert "did you mean 'gamma'?" in found["stages[2].params (line 14)"]
    assert "did you mean 'steps'?" in found["stages[2].call (line 15)"]
    assert "did you mean 'measured'?" in found["schedule.policy (line 16)"]
    assert "did you mean 'record'?" in found["errors.on_error (line 17)"]
    assert "integer" in found["errors.retries (line 17)"]
    assert "did you mean 'figures'?" in found["report.headline (line 18)"]


def test_missing_and_unknown_arguments_are_both_named(folder: Path) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(JOB.replace("{gamma: 2}", "{gama: 2}"), folder)
    assert [place for place, _ in caught.value.faults] == ["stages[0].params (line 8)"] * 2
    assert "'gamma' is required" in str(caught.value)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("stages.py", "is not module:Class"),
        ("'stages.py:'", "is not module:Class"),
        ("stagse.py:Brighten", "did you mean stages.py?"),
        ("stages:Brigten", "did you mean 'Brighten'?"),
        ("no_such_module_here:Thing", "no module named 'no_such_module_here'"),
        ("no_such.module_here:Thing", "no module named 'no_such.module_here'"),
        ("json.decoder:JSONDecodr", "did you mean 'JSONDecoder'?"),
        ("stages.py:Deaf", "Deaf has no __call__"),
        ("broken.py:Thing", "line 1 is not valid Python"),
    ],
)
def test_targets_that_cannot_be(
    folder: Path, target: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An example's own, from another test.
    monkeypatch.delitem(sys.modules, "stages", raising=False)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if not Path(one, "stages.py").is_file()])
    (folder / "broken.py").write_text("class Thing(:\n")
    text = JOB.replace("stages.py:Brighten", target).replace("    params: {gamma: 2}\n", "")
    assert any(said in fault for fault in faults_of(text, folder).values())


@pytest.mark.parametrize(
    "target", ["stages.py:Open", "json.decoder:JSONDecoder", "decimal:Decimal", "itertools:count"]
)
def test_targets_whose_source_says_nothing_against_them(folder: Path, target: str) -> None:
    assert parse_spec(JOB.replace("stages.py:Brighten", target).replace("{gamma: 2}", "{}"), folder)


def test_checking_a_target_does_not_run_it(folder: Path) -> None:
    (folder / "loud.py").write_text(
        "raise RuntimeError('this ran')\nclass Loud:\n    def __call__(self, i, t): ...\n"
    )
    assert parse_spec(JOB.replace("stages.py:Brighten", "loud.py:Loud").replace("{gamma: 2}", "{}"), folder)


def test_names_of_stages_and_outputs_must_differ(folder: Path) -> None:
    stage = "  - {name: one, target: 'stages.py:Open', outputs: {picture: png}}\n"
    found = faults_of(JOB + stage + stage.replace("one", "two"), folder)
    assert "stages[0] is called 'one' already" in found["stages[1].name (line 9)"]
    assert "output of stage 'one' already" in found["stages[2].outputs.picture (line 10)"]


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ("{}", "none is given"),
        ("{folder: pictures, glob: '*'}", "given: folder, glob"),
        ("{jsonl: stages.py, table: stages.py}", "columns of its own"),
        ("{csv: no.csv}", "there is no file"),
        ("{folder: pictures, table: no.csv}", "there is no file"),
    ],
)
def test_exactly_one_source_of_items(folder: Path, inputs: str, said: str) -> None:
    found = faults_of(JOB.replace("{folder: pictures}", inputs), folder)
    assert any(said in fault for fault in found.values())


@pytest.mark.parametrize(
    "text", ["", "42", "[1, 2]", "version: [1\n", "a: b: c", "\t- x", "version: !!python/object:os.x {}"]
)
def test_what_is_no_job_at_all(folder: Path, text: str) -> None:
    with pytest.raises(SpecError):
        parse_spec(text, folder)


def test_aliases_work(folder: Path) -> None:
    text = JOB.replace("params: {gamma: 2}", "params: &p {gamma: 2}")
    text += "  - {name: two, target: 'stages.py:Brighten', params: *p}\n"
    assert parse_spec(text, folder).stages[1].params == {"gamma": 2}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("job.seed=7", lambda spec: spec.job.seed == 7),
        ("one.gamma=3.5", lambda spec: spec.stages[0].params == {"gamma": 3.5}),
        ("one.by=[1, 2]", lambda spec: spec.stages[0].params == {"gamma": 2, "by": [1, 2]}),
        ("stages.one.call.steps=4", lambda spec: spec.stages[0].call == {"steps": 4}),
        ("stages.one.repeatable=false", lambda spec: spec.stages[0].repeatable is False),
        ("devices=cpu*4", lambda spec: spec.devices.use == "cpu*4"),
        ("schedule=pull:2", lambda spec: spec.schedule.policy == "pull:2"),
        ("stages[0].repeatable=false", lambda spec: spec.stages[0].repeatable is False),
        ("errors.retries=2", lambda spec: spec.errors.retries == 2),
    ],
)
def test_set_wins_over_the_file(folder: Path, change: str, expected) -> None:
    assert expected(parse_spec(JOB, folder, changes=[change]))


def test_an_argument_in_the_wrong_place_says_where_it_goes(folder: Path) -> None:
    hasty = JOB.replace("Brighten", "Hasty").replace("gamma: 2", "wait: 2")
    assert "write (self, context, wait)" in faults_of(hasty, folder)["stages[0].params (line 8)"]
    beside = JOB.replace("params: {gamma: 2}", "params: {gamma: 2}\n    by: 3")
    assert "goes under params: {by: ...}" in faults_of(beside, folder)["stages[0].by (line 9)"]


@pytest.mark.parametrize(
    "change",
    ["job.seed", "=7", "..=1", "stages.two.params.x=1", "stages[9].x=1", "version.x=1", "job.seed=[1"],
)
def test_set_that_cannot_be(folder: Path, change: str) -> None:
    with pytest.raises(ConfigError):
        parse_spec(JOB, folder, changes=[change])


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load_spec(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot read"):
        load_spec(tmp_path / "binary.yaml")


def test_the_written_spec_reads_back_equal(folder: Path) -> None:
    spec = parse_spec(
        JOB, folder, changes=["job.name='Grüße: ja'", "one.by=1e-3", "one.gamma=['1e-3', 'no', '010']"]
    )
    assert parse_spec(spec_text(spec), folder) == spec


def test_schema_describes_every_key() -> None:
    schema = json_schema()
    assert json.loads(json.dumps(schema))["$defs"]["StageSpec"]["properties"]["target"]["description"]
    keys = "version job backend devices stages schedule upload cache costs errors on_done report"
    assert set(schema["properties"]) == set(keys.split())
    assert schema["additionalProperties"] is False


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(
    path=st.sampled_from(["version", "job", "stages", "devices", "schedule", "errors", "report"]),
    value=values,
)
def test_any_value_anywhere_is_a_spec_or_a_clear_error(path: str, value: object) -> None:
    document = yaml.safe_load(JOB)
    document[path] = value
    try:
        parse_spec(yaml.safe_dump(document), Path("/nowhere"))
        faults = [("none", "none")]
    except SpecError as error:
        faults = error.faults
    assert faults
    assert all(place and text for place, text in faults)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3), ("no", "no"), ("on", "on"), ("1:30", "1:30"), ("2026-01-01", "2026-01-01"),
        ("010", 10), ("0x10", 16), ("-.5", -0.5), ("1_000", "1_000"), ("~", None), ("true", True),
        ("1.2.3", "1.2.3"),
    ],
)  # fmt: skip
def test_plain_values_are_read_as_yaml_1_2_does(folder: Path, text: str, value: object) -> None:
    found = parse_spec(JOB, folder, changes=[f"one.gamma={text}"]).stages[0].params["gamma"]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize("name", ["../../x", "..", "a/../b", "/x", "a//b", "a\\\\b"])
def test_a_name_that_would_leave_the_folder_of_runs(folder: Path, name: str) -> None:
    found = faults_of(JOB.replace("name: test", f'name: "{name}"'), folder)
    assert "is no name of a folder below runs/" in found["job.name (line 3)"]


# --- older keys become today's, each with a note; what is not understood is a fault, not silence -------

OLDER = JOB.partition("stages:")[0] + "stages: [{name: one, target: 'stages.py:Open'}]\n"


@pytest.mark.parametrize(
    ("params", "use", "mode", "notes"),
    [
        ("{device: cuda}", "cuda:0", "auto", ["device: cuda is now devices.use: cuda:0"]),
        ("{device: 'cuda:2'}", "cuda:2", "auto", ["now devices.use: cuda:2"]),
        ("{device: auto, use_device_map: true}", "all", "model_parallel", ["use_device_map", "device: auto"]),
        ("{device_ids: [0, 1, 5], parallel_mode: data_parallel, num_workers: 3}",
         "cuda:0,1,5", "data_parallel", ["parallel_mode", "device_ids", "num_workers: 3 has no effect"]),
        ("{num_workers: 4}", 4, "auto", ["now devices.use: 4"]),
        ("{device: cuda, parallel_mode: data_parallel}", "cuda", "data_parallel",
         ["parallel_mode", "now devices.use: cuda"]),
        ("{device: cuda, num_workers: 2}", 2, "auto", ["devices.use: cuda:0", "devices.use: 2"]),
        ("{use_device_map: false}", "all", "auto", ["happens anyway"]),
    ],
)  # fmt: skip
def test_each_key_is_converted_and_explained(folder: Path, params, use, mode, notes) -> None:
    spec = parse_spec(f"{OLDER}diffusion_model: {{params: {params}}}\n", folder)
    assert (spec.devices.use, spec.schedule.mode) == (use, mode)
    assert len(spec.notes) == len(notes)
    for note in notes:
        assert any(note in said for said in spec.notes), spec.notes


def test_the_newer_key_counts(folder: Path) -> None:
    text = OLDER + "devices: cpu\ndiffusion_model: {params: {device_ids: [0]}}\n"
    spec = parse_spec(text, folder)
    assert spec.devices.use == "cpu"
    assert "has no effect: devices.use is cpu" in spec.notes[0]


@pytest.mark.parametrize(
    ("params", "key", "said"),
    [
        ("{parallel_mode: both}", ".params.parallel_mode", "'both' is not known"),
        ("{parallel_mode: pipeline}", ".params.parallel_mode", "mode: stage_parallel"),
        ("{device_ids: 0}", ".params.device_ids", "use a list"),
        ("{device_ids: [true]}", ".params.device_ids", "use a list"),
        ("{num_workers: 0}", ".params.num_workers", "from 1"),
        ("{device: 0}", ".params.device", "use cuda"),
        ("{use_device_map: 3}", ".params.use_device_map", "true or false"),
        ("{model_name: x}", ".params.model_name", "not understood"),
        ("{}, type: qwen", ".type", "not understood"),
        ("3", "", "older section"),
    ],
)
def test_what_is_not_understood_is_a_fault(folder: Path, params: str, key: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(f"{OLDER}diffusion_model: {{params: {params}}}\n", folder)
    ((found, text),) = caught.value.faults
    assert found == f"diffusion_model{key} (line 6)"
    assert said in text


# --- models, kinds, fits, samples, sizes, what has no effect -------------------------------------------

HEAD = "version: 1\njob: {name: test, inputs: {folder: .}}\n"


def spec_of(folder: Path, stages: str, more: str = ""):
    (folder / "model").mkdir(exist_ok=True)
    return parse_spec(f"{HEAD}stages:\n{stages}\n{more}", folder)


def stage_faults(folder: Path, stages: str, more: str = "") -> dict[str, str]:
    with pytest.raises(SpecError) as caught:
        spec_of(folder, stages, more)
    return {place.partition(" (")[0]: text for place, text in caught.value.faults}


@pytest.mark.parametrize("name", BUILTIN_STAGES)
def test_every_kind_is_a_class_that_is_there(name: str) -> None:
    assert locate_target(BUILTIN_STAGES[name].target, Path())


def test_a_kind_fills_in_its_target_and_wants_its_model(folder: Path) -> None:
    stage = spec_of(folder, "  - {name: a, kind: image_edit, model: {path: model}}").stages[0]
    assert stage.target == BUILTIN_STAGES["image_edit"].target
    found = stage_faults(folder, "  - {name: a, kind: image_edit}\n  - {name: b, kind: image_edti}")
    assert "required for kind image_edit" in found["stages[0].model"]
    assert "did you mean 'image_edit'" in found["stages[1].kind"]
    assert "not both" in stage_faults(folder, f"  - {{name: a, kind: command, {OPEN}}}")["stages[0].target"]
    assert "or give kind" in stage_faults(folder, "  - {name: a}")["stages[0].target"]


def test_models_must_be_there_unless_their_config_is(folder: Path) -> None:
    assert (
        "no folder"
        in stage_faults(folder, f"  - {{name: a, {OPEN}, model: {{path: gone}}}}")["stages[0].model.path"]
    )
    named = stage_faults(folder, f"  - {{name: a, {OPEN}, model: {{path: own/gone}}}}")[
        "stages[0].model.path"
    ]
    assert "hf download own/gone" in named
    there = spec_of(folder, f"  - {{name: a, {OPEN}, model: {{path: gone, config: model}}}}")
    assert there.stages[0].model is not None
    odd = stage_faults(folder, f"  - {{name: a, {OPEN}, model: {{path: gone, config: gone}}}}")
    assert "no folder" in odd["stages[0].model.config"]


def test_lossy_fits_must_be_allowed(folder: Path) -> None:
    stage = f"  - {{name: a, {OPEN}, fit: [whole, fp8]}}"
    assert "allow_lossy: true" in stage_faults(folder, stage)["stages[0].fit"]
    assert spec_of(folder, stage, "devices: {allow_lossy: true}").stages[0].fit == ("whole", "fp8")
    assert (
        "at most once"
        in stage_faults(folder, f"  - {{name: a, {OPEN}, fit: [whole, whole]}}")["stages[0].fit"]
    )


def test_samples_need_a_choice_and_a_choice_needs_samples(folder: Path) -> None:
    make, judge = f"  - {{name: a, {OPEN}, samples: 4}}", f"  - {{name: b, {OPEN}, best: {{by: score}}}}"
    assert spec_of(folder, f"{make}\n{judge}").stages[1].best is not None
    assert "no samples to choose from" in stage_faults(folder, judge)["stages[0].best"]
    twice = stage_faults(folder, f"{make}\n  - {{name: c, {OPEN}, samples: 2}}")
    assert "makes samples already" in twice["stages[1].samples"]


def test_conditions_and_interpreters_are_checked(folder: Path) -> None:
    found = stage_faults(
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
    assert "a number and its unit" in stage_faults(folder, stage, "devices: {reserve: 1}")["devices.reserve"]
    assert "a number and its unit" in stage_faults(folder, stage, "devices: {host: 3 apples}")["devices.host"]


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
