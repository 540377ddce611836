"""The example does what it promises, on real pictures that its networks have never seen."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "restore"
sys.path.insert(0, str(EXAMPLE))
try:
    import headline
    import networks
    import pictures
    import stages
    import torch
finally:
    sys.path.remove(str(EXAMPLE))

from evenload.pipeline import Pipeline, PipelineResult  # noqa: E402

SOME = ("astronaut.png", "brick.png", "coffee.png", "coins.png", "rocket.jpg")
ALL = pytest.param(pictures.NAMES, marks=pytest.mark.slow)


@pytest.fixture(scope="module", params=[SOME, ALL], ids=["some", "all"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pictures, written once."""
    folder = tmp_path_factory.mktemp("restore") / "pictures"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, "NAMES", request.param)
        assert pictures.write(folder) == len(request.param) * len(pictures.LEVELS)
    return folder


def run(folder: Path, out: Path, *changes: str, **options) -> PipelineResult:
    changes = (
        f"job.inputs.folder={folder / 'noised'}",
        f"job.inputs.table={folder / 'truth.csv'}",
        "report.html=false",
        "report.trace=false",
        *changes,
    )
    return Pipeline.from_yaml(EXAMPLE / "job.yaml", changes).run(out=out, **options)


@pytest.fixture(scope="module")
def result(forked_servers: None, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> PipelineResult:
    return run(folder, tmp_path_factory.mktemp("run"), devices="cpu*2")


def test_pictures_gain_and_scores_rank(result: PipelineResult, folder: Path) -> None:
    n_pictures = len(list((folder / "noised").iterdir()))
    assert (result.status, result.n_done) == ("done", n_pictures)
    assert result.headline["psnr_gain_db_at_0.1"] >= 9
    assert result.headline["psnr_gain_db_at_0.05"] >= 6
    assert result.headline["psnr_gain_db_at_0.15"] >= 10
    assert result.headline["score_rank_correlation"] >= 0.9
    assert result.headline["score_after"] > result.headline["score_before"] + 0.3


def test_no_picture_gets_worse(result: PipelineResult) -> None:
    for item in result:
        assert item.outputs["psnr_gain_db"] > 3, item.id
        assert item.outputs["score"] > item.outputs["score_before"], item.id


def test_the_figures_are_those_of_the_files(result: PipelineResult, folder: Path) -> None:
    item = result.items[4]
    clean = stages.read_batch(folder / "clean" / "brick.png")
    restored = stages.read_batch(result.folder / item.outputs["restored"])
    error = (restored - clean).numpy().astype(np.float64)
    assert item.id == "brick-10"
    assert item.outputs["psnr_db"] == pytest.approx(-10 * np.log10(np.mean(error**2)), abs=1e-3)


@pytest.mark.parametrize(("devices", "backend"), [("cpu*1", "inline"), ("cpu*3", "process")])
def test_bytes_do_not_depend_on_the_devices(
    result: PipelineResult, folder: Path, tmp_path: Path, devices: str, backend: str
) -> None:
    """Three of the pictures, on one thread or three workers, give what all of them gave on two."""
    some = tmp_path / "some"
    some.mkdir()
    for name in ("astronaut-10", "coins-05", "rocket-10"):
        (some / f"{name}.png").write_bytes((folder / "noised" / f"{name}.png").read_bytes())
    other = run(folder, tmp_path / "out", f"job.inputs.folder={some}", devices=devices, backend=backend)
    expected = {item.id: item for item in result}
    for item in other:
        assert item.outputs == expected[item.id].outputs
        restored = item.outputs["restored"]
        assert (other.folder / restored).read_bytes() == (result.folder / restored).read_bytes()


def test_pictures_without_known_truth_are_only_scored(folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "mine.png").write_bytes((folder / "noised" / "coffee-10.png").read_bytes())
    changes = (f"job.inputs.folder={own}", "job.inputs.table=null")
    found = run(folder, tmp_path / "out", *changes, devices="cpu*1", backend="inline")
    assert set(found.items[0].outputs) == {"restored", "score_before", "score"}
    assert set(found.headline) == {"score_before", "score_after"}


def test_the_denoiser_scales_with_its_input() -> None:
    """Without biases, twice the contrast gives twice the answer: why one set of weights serves all levels."""
    denoiser = networks.load(networks.Denoiser(), networks.WEIGHTS / "denoiser.safetensors")
    picture = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        assert torch.allclose(denoiser(2 * picture), 2 * denoiser(picture), atol=1e-5)


def test_training_runs_and_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A few steps: not the committed weights, but the same code; here, where torch is loaded."""
    monkeypatch.syspath_prepend(EXAMPLE)
    monkeypatch.setattr(sys, "argv", ["train.py", "--steps", "2", "--pictures", "8", "-o", str(tmp_path)])
    threads = torch.get_num_threads()
    try:
        runpy.run_path(str(EXAMPLE / "train.py"), run_name="__main__")
    finally:
        torch.set_num_threads(threads)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["denoiser.safetensors", "judge.safetensors"]
    assert "gain_db_at_0.1" in capsys.readouterr().out


def test_rank_correlation_is_spearmans() -> None:
    from scipy.stats import spearmanr

    rng = np.random.default_rng(0)
    for _ in range(20):
        first, second = rng.integers(0, 5, 30), rng.normal(size=30).round(1)
        expected = spearmanr(first, second)[0]
        assert headline.rank_correlation(first, second) == pytest.approx(expected)


def test_the_job_file_says_what_is_missing(tmp_path: Path) -> None:
    """Before the pictures are written."""
    from evenload.errors import SpecError

    (tmp_path / "job.yaml").write_text((EXAMPLE / "job.yaml").read_text())
    for name in ("stages.py", "headline.py"):
        (tmp_path / name).write_text((EXAMPLE / name).read_text())
    with pytest.raises(SpecError) as caught:
        Pipeline.from_yaml(tmp_path / "job.yaml")
    assert [place.split(" ")[0] for place, _ in caught.value.faults] == [
        "job.inputs.folder",
        "job.inputs.table",
    ]


@pytest.mark.slow
def test_the_demo_prints_what_was_measured(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / "demo.py"), "--no-progress"],
        capture_output=True,
        text=True,
        timeout=550,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads((EXAMPLE / "runs" / "restore" / "summary.json").read_text())
    assert f"{summary['headline']['psnr_db_at_0.1']:.2f} dB" in done.stdout
    assert "report.html" in done.stdout


def test_noise_is_as_strong_as_said() -> None:
    from PIL import Image

    grey = Image.new("RGB", (200, 200), (128, 128, 128))
    noised = np.asarray(pictures.noised(grey, 0.1, seed=0), dtype=float) / 255
    assert noised.std() == pytest.approx(0.1, rel=0.02)
    assert np.array_equal(np.asarray(pictures.noised(grey, 0.1, seed=0)) / 255, noised)


def test_the_judge_is_blind_to_brightness_of_flat_pictures() -> None:
    judge = networks.load(networks.NoiseJudge(), networks.WEIGHTS / "judge.safetensors")
    with torch.inference_mode():
        levels = torch.stack([judge(torch.full((1, 3, 64, 64), value))[0] for value in (0.0, 0.5, 1.0)])
    assert levels.max() < 0.01
