"""``evenload plan`` and ``evenload init`` as a person meets them."""

import functools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from evenload.certificate import check, load
from evenload.cli import cli
from evenload.errors import ConfigError, EvenloadError, UnknownName
from evenload.pipeline.planning.modelled_fleet import parse_modelled

REAL = Path(__file__).parents[3] / "examples/edit-and-score/real.yaml"


def run(*arguments: str) -> str:
    result = CliRunner().invoke(cli, [str(a) for a in arguments], standalone_mode=False)
    if isinstance(result.exception, EvenloadError):
        raise result.exception
    assert result.exception is None, result.exception
    return result.output


@functools.cache
def plan_of_the_job_asked_for() -> str:
    return run("plan", REAL, "--items", "270", "--devices", "6x24GB:h100")


def test_the_job_asked_for_without_gpu_or_weights():
    said = plan_of_the_job_asked_for()
    assert "denoise  38.3 GiB" in said
    assert "transformer 38.1 GiB (60 blocks)" in said
    assert "layers split 20+20+20, 3 in flight" in said
    assert "model_parallel" in said
    assert "data_parallel" in said
    assert "no device holds all stages at once" in said
    found = json.loads(run("plan", REAL, "--items", "270", "--devices", "6x24GB:h100", "--json"))
    assert found["schema"] == 1
    assert found["mode"] == "model_parallel"
    assert 1 <= found["ratio_to_bound"] < 1.06
    for memory in found["memory"]:
        assert max(memory["phase2bytes"]) <= memory["free_bytes"]


def test_a_plan_with_split_layers_says_what_its_certificate_proves(tmp_path):
    """The oracle is the checker, which knows nothing of plans."""
    path = tmp_path / "plan.cert.json"
    size = ("--items", "30", "--devices", "6x24GB:h100", "--certificate", path)
    found = json.loads(run("plan", REAL, *size, "--json"))
    achieved, bound = check(load(path))
    assert float(achieved) == pytest.approx(1e9 * found["makespan_s"], rel=1e-6)
    assert 0 < bound <= 1e9 * found["bound_s"] * (1 + 1e-6)
    share = re.search(r"proves .*, ([0-9.]+) % of the best possible", run("plan", REAL, *size))
    assert float(share[1]) == pytest.approx(float(100 * bound / achieved), rel=1e-3)


def test_no_device_is_said_as_json_too():
    found = CliRunner().invoke(cli, ["plan", str(REAL), "--items", "3", "--devices", "cuda:77", "--json"])
    assert isinstance(found.exception, EvenloadError)
    assert found.exception.exit_code == 3
    page = json.loads(found.stdout)
    assert page["schema"] == 1
    assert "cuda:77" in page["error"]


def test_no_framework_is_imported_to_plan_it():
    code = (
        "import sys; from evenload.cli import cli\n"
        f"words = ['plan', {str(REAL)!r}, '--items', '9', '--devices', '6x24GB:h100']\n"
        "cli.main(words, standalone_mode=False)\n"
        "print([m for m in ('torch', 'diffusers', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=550, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_what_does_not_fit_is_refused_with_figures_and_options():
    size = ("--items", "9", "--devices", "1x24GB:h100", "--set", "stages.denoise.fit=[whole]")
    with pytest.raises(ConfigError) as caught:
        run("plan", REAL, *size)
    assert "denoise needs" in caught.value.message
    assert "the largest device has 21.4 GiB free" in caught.value.message
    assert "stream its blocks from host memory" in (caught.value.hint or "")


@pytest.mark.parametrize("mode", ["single", "swap"])
def test_each_mode_can_be_asked_for(mode):
    said = run("plan", REAL, "--items", "12", "--devices", "8x24GB:h100", "--json", "--mode", mode)
    assert json.loads(said)["mode"] == mode


def test_a_starter_validates_plans_and_has_a_schema(tmp_path):
    pytest.importorskip("pydantic", reason="needs the extra jobs")
    run("init", str(tmp_path), "--schema")
    assert (tmp_path / "job.yaml").read_text().startswith("# yaml-language-server: $schema=job.schema.json")
    assert "samples" in (tmp_path / "job.schema.json").read_text()
    said = run("plan", str(tmp_path / "job.yaml"), "--devices", "cpu*2")
    assert "how long draft, judge, polish takes is not known" in said
    assert "swap: " in said
    with pytest.raises(ConfigError, match="already"):
        run("init", str(tmp_path))
    run("init", str(tmp_path), "--force")
    timed = ["--set", "stages.draft.estimate.item_s=2", "--set", "stages.judge.estimate.item_s=1"]
    timed += ["--set", "stages.polish.estimate.item_s=1"]
    said = run("plan", str(tmp_path / "job.yaml"), "--devices", "cpu*2", *timed)
    assert "x the bound" in said


def test_times_of_an_earlier_run(tmp_path):
    run("init", str(tmp_path))
    (tmp_path / "run").mkdir()
    stages = [
        {"stage": name, "n_done": 4, "n_failed": 0, "busy_s": 8.0} for name in ("draft", "judge", "polish")
    ]
    summary = {"stages": stages, "measured": {"load_s": {"cpu:0": {"draft": 3.0}}}}
    (tmp_path / "run/summary.json").write_text(json.dumps(summary))
    line = ("plan", tmp_path / "job.yaml", "--devices", "cpu*2", "--measured", tmp_path / "run", "--json")
    found = json.loads(run(*line))
    draft = found["facts"]["stages"][0]
    assert (draft["item_s"], draft["item_from"], draft["load_s"]) == (2.0, "measured", 3.0)
    with pytest.raises(ConfigError, match="says nothing of a run"):
        run("plan", str(tmp_path / "job.yaml"), "--measured", str(tmp_path))


def test_fleets_as_people_write_them():
    fleet = parse_modelled("2x24GB:h100, 1x22.5GiB:a100@0.5,1x8GB")
    assert [device.id for device in fleet] == ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]
    assert fleet[2].free_bytes == int(22.5 * 2**30)
    assert (fleet[2].speed, fleet[3].hardware) == (0.5, None)
    with pytest.raises(UnknownName, match="unknown accelerator"):
        parse_modelled("1x24GB:h1000")


def test_notes_are_few_unless_asked_for_and_no_row_is_empty():
    words = ("plan", REAL, "--items", "270", "--devices", "6x24GB:h100")
    few, every = plan_of_the_job_asked_for().splitlines(), run(*words, "--verbose").splitlines()
    notes = [line for line in few if line.startswith("note: ")]
    assert len(notes) == 4
    n_all = sum(line.startswith("note: ") for line in every)
    assert few[-1] == f"and {n_all - 4} more notes, see --verbose"
    assert "no bfloat16" not in "".join(every)  # these cards have it
    two = run("plan", REAL, "--items", "2", "--devices", "6x24GB:h100")
    rows = two[two.index("phase") : two.index("0 s")]
    assert "  0  " not in rows


def test_host_memory_of_streamed_plans_is_told_and_checked():
    words = ("plan", REAL, "--items", "30", "--set", "stages.denoise.fit=[resident_stream]")
    assert "GiB pinned for streamed blocks, not checked: give" in run(*words, "--devices", "8x24GB:h100")
    enough = run(*words, "--devices", "8x24GB:h100,host=512GB")
    assert "GiB pinned for streamed blocks, of 476.8 GiB that are free" in enough
    page = json.loads(run(*words, "--devices", "8x24GB:h100,host=512GB", "--json"))
    assert page["streamed_bytes"] > 8 * 15 * 2**30
    with pytest.raises(ConfigError):
        run(*words, "--devices", "8x24GB:h100,host=64GB")
    with pytest.raises(ConfigError, match="host=lots"):
        run(*words, "--devices", "8x24GB:h100,host=lots")


def test_a_card_without_bfloat16_is_named():
    assert "t4 has no bfloat16" in run("plan", REAL, "--items", "2", "--devices", "4x15GB:t4", "--verbose")
