"""What the planner is asked about a job: memory that is free, times and their sources, tasks by samples."""

import json
from pathlib import Path

import pytest

from evenload.errors import ConfigError
from evenload.pipeline.job.job_file import parse_spec
from evenload.pipeline.planning.estimates.run_history import StageHistory, read_history
from evenload.pipeline.planning.job_plan import EFFICIENCY, build_job_problem
from evenload.pipeline.planning.modelled_fleet import parse_modelled

CONFIGS = Path(__file__).parents[3] / "examples/edit-and-score/configs"
GIB = 2**30
JOB = """\
version: 1
job: {name: test, inputs: {jsonl: none.jsonl}}
devices: {reserve: 2GiB, limits: {"cuda:1": 10GiB}, host: 64GiB}
stages:
  - {name: encode, kind: image_edit_encode, model: &m {path: a/b, config: qwen-image-edit, dtype: bfloat16}}
  - name: denoise
    kind: image_edit_denoise
    model: *m
    samples: 4
    estimate: {item_s: 10, load_s: 7, activation: 3GiB, device: a100}
  - {name: score, target: "s:S", best: {by: score, n: 2}, when: score > 1}
  - {name: end, target: "s:S", samples: 3}
"""


def asked(**more):
    spec = parse_spec(JOB, CONFIGS, with_inputs=False)
    return build_job_problem(spec, 5, CONFIGS, parse_modelled("1x24GB:h100,1x24GB:a100"), **more)


def test_memory_is_what_is_free_less_the_reserve_and_at_most_the_limit() -> None:
    first, second = asked().problem.devices
    assert (first.free_bytes, second.free_bytes) == (24 * 10**9 - 2 * GIB, 10 * GIB)
    assert (first.speed, second.speed) == (1.0, pytest.approx(312 / 989))
    assert asked().problem.host_bytes == 64 * GIB


def test_times_say_where_they_come_from() -> None:
    encode, denoise, score, _ = asked().stages
    assert (encode.item_from, denoise.item_from, score.item_from) == ("computed", "given", "unknown")
    assert denoise.item_s == pytest.approx(10 * 312 / 989)
    assert (denoise.load_s, denoise.load_from, denoise.activation_bytes) == (7, "given", 3 * GIB)
    assert encode.item_s == pytest.approx(54.3e12 / (EFFICIENCY * 989e12), rel=0.01)
    assert not asked().has_times
    known = {name: StageHistory(2.0, 1.0) for name in ("encode", "denoise", "score", "end")}
    found = asked(history=known)
    assert found.has_times
    assert {stage.item_from for stage in found.stages} == {"measured"}
    assert found.problem.stages[1].item_s == 2.0


def test_tasks_by_samples_and_the_best_of_them() -> None:
    assert [stage.n_tasks for stage in asked().problem.stages] == [1, 4, 4, 6]
    assert any("as if every item passed" in note for note in asked().notes)


def test_a_plan_says_of_which_stages_it_does_not_know_what_they_hold() -> None:
    """The oracle is the job: `score` and `end` are classes of which nothing is told, and a CPU swaps."""
    spec = parse_spec(JOB, CONFIGS, changes=["stages.end.estimate={activation: 1GiB}"], with_inputs=False)

    def unknown(spec, fleet: str) -> list[str]:
        notes = build_job_problem(spec, 5, CONFIGS, parse_modelled(fleet)).notes
        return [note.partition(" holds ")[0] for note in notes if "is not known: the plan takes" in note]

    both = parse_spec(JOB, CONFIGS, with_inputs=False)
    assert unknown(both, "2x24GB:h100") == ["what score, end"]
    assert unknown(spec, "2x24GB:h100") == ["what score"]


def test_components_are_those_of_the_kind() -> None:
    encode, denoise, *_ = asked().stages
    assert encode.size is not None
    assert denoise.size is not None
    assert [c.name for c in encode.size.components] == ["text_encoder"]
    assert sorted(c.name for c in denoise.size.components) == ["transformer", "vae"]


@pytest.mark.parametrize(
    ("fleet", "why"),
    [
        ("2x0GB:h100", "memory"),
        ("2x24GB:h100@0", "speed above 0"),
        ("65x24GB:h100", "more than 64 devices"),
        ("1000000000x24GB:h100", "more than 64 devices"),
        ("24GB:h100", "is no group of devices"),
    ],
)
def test_a_fleet_that_cannot_be_says_why(fleet: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_modelled(fleet)
    assert why in caught.value.message


def test_seconds_for_an_item_and_for_a_load(tmp_path: Path) -> None:
    stages = [{"stage": "edit", "n_done": 3, "n_failed": 1, "busy_s": 8.0}, {"stage": "score"}]
    loads = {"load_s": {"cuda:0": {"edit": 10.0}, "cuda:1": {"edit": 20.0}}}
    (tmp_path / "summary.json").write_text(json.dumps({"stages": stages, "measured": loads}))
    found = read_history(tmp_path)
    assert found == {"edit": StageHistory(2.0, 15.0), "score": StageHistory()}


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "{}", '{"stages": [3]}', '{"stages": [{"stage": "a", "n_done": "many"}]}'),
        '{"stages": [], "measured": [1]}',
        '{"stages": [], "measured": {"load_s": {"cpu:0": 3}}}',
    ],
)
def test_a_file_that_says_nothing_of_a_run(tmp_path: Path, content: str) -> None:
    (tmp_path / "summary.json").write_text(content)
    with pytest.raises(ConfigError, match="says nothing of a run"):
        read_history(tmp_path)
    with pytest.raises(ConfigError, match="says nothing of a run"):
        read_history(tmp_path / "none")
