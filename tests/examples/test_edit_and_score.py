"""The second example: five categories edited and scored, the same on any number of workers, and resumed."""

import json
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from evenload.cli import main
from evenload.events import Event, ItemFinished, Span
from evenload.pipeline import MultiDeviceImageEdit, Pipeline, PipelineResult

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(find_spec("diffusers") is None, reason="the extra models is not installed")

EXAMPLE = Path(__file__).parents[2] / "examples" / "edit-and-score"
STEPS = "denoise.num_inference_steps=2"


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """The stages compute on one thread each; inline, that would stay so for other tests."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("example")
    for name in ("job.yaml", "headline.py", "build.py"):
        shutil.copy(EXAMPLE / name, folder)
    sys.path.insert(0, str(folder))
    try:
        import build

        assert build.build(folder, each=1) == 5
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("build", None)
    return folder


def run(example: Path, out: str, *changes: str, **options) -> PipelineResult:
    options.setdefault("backend", "inline")
    return Pipeline.from_yaml(example / "job.yaml", [STEPS, *changes]).run(out=example / out, **options)


def told(capsys: pytest.CaptureFixture[str], folder: Path) -> dict:
    with pytest.raises(SystemExit) as ended:
        main(["status", str(folder), "--json"])
    assert ended.value.code == 0
    return json.loads(capsys.readouterr().out)


def outputs_of(folder: Path) -> dict[str, bytes]:
    files = [path for path in (folder / "outputs").rglob("*") if path.is_file()]
    made = {str(path.relative_to(folder)): path.read_bytes() for path in files}
    return made | {"results": (folder / "results.jsonl").read_bytes()}


@pytest.fixture(scope="module")
def first(example: Path) -> PipelineResult:
    return run(example, "one", devices="cpu*1")


def test_a_picture_of_each_of_five_categories(first: PipelineResult) -> None:
    assert (first.status, first.n_done) == ("done", 5)
    assert [row.group for row in first] == ["color", "object", "style", "background", "text"]
    assert all(0 <= row.outputs["score"] <= 9 for row in first)
    assert len({row.outputs["score"] for row in first}) == 5
    assert set(first.headline) == {
        "score", *(f"score_{name}" for name in ("color", "object", "style", "background", "text"))
    }  # fmt: skip
    page = (first.folder / "report.html").read_text()
    assert "color-0" in page


@pytest.mark.parametrize(
    ("devices", "mode", "backend"),
    [
        ("cpu*3", "data_parallel", "inline"),
        ("cpu*4", "stage_parallel", "inline"),
        pytest.param("cpu*2", "swap", "process", marks=pytest.mark.slow),
        ("cpu*2", "model_parallel", "inline"),
    ],
)
def test_the_same_bytes_on_any_devices_in_any_mode(
    example: Path, first: PipelineResult, devices: str, mode: str, backend: str
) -> None:
    result = run(example, mode, f"schedule.mode={mode}", devices=devices, backend=backend)
    assert result.status == "done"
    assert outputs_of(result.folder) == outputs_of(first.folder)


def test_another_question_is_scored_without_editing_anything_again(
    example: Path, first: PipelineResult
) -> None:
    shutil.copytree(first.folder, example / "asked")
    seen: list[Event] = []
    question = "score.question='Is the picture sharp?'"
    asked = run(example, "asked", question, devices="cpu*1", sinks=[seen.append])
    assert asked.n_restored == 15, "five pictures through three stages"
    assert {event.stage for event in seen if isinstance(event, Span)} == {"score"}
    before, after = outputs_of(first.folder), outputs_of(asked.folder)
    assert [name for name in before if before[name] != after[name]] == ["results"]
    scores = [(one.outputs["score"], two.outputs["score"]) for one, two in zip(first, asked, strict=True)]
    assert any(one != two for one, two in scores)


def test_it_goes_on_where_it_was_and_retries_what_failed(
    example: Path, first: PipelineResult, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = example / "pictures" / "style-0.png"
    good = picture.read_bytes()
    picture.write_bytes(good[:50])
    try:
        broken = run(example, "retried", devices="cpu*1")
    finally:
        picture.write_bytes(good)
    assert [(row.id, row.status) for row in broken if row.status != "done"] == [("style-0", "failed")]
    error = broken.items[2].error
    assert error is not None
    assert (error.stage, error.type) == ("encode", "FormatError")
    status = told(capsys, broken.folder)
    assert (status["status"], status["n_failed"], "style" in status["groups"]) == ("failures", 1, False)
    seen: list[Event] = []
    again = Pipeline.from_run(broken.folder).run(
        devices="cpu*1", out=broken.folder, backend="inline", retry_failed=True, sinks=[seen.append]
    )
    assert {event.item for event in seen if isinstance(event, ItemFinished)} == {"style-0"}
    assert again.status == "done"
    assert outputs_of(again.folder) == outputs_of(first.folder)
    status = told(capsys, broken.folder)
    assert (status["status"], status["stages"]["score"]) == ("done", {"n_done": 5, "n_failed": 0})


def test_only_what_scores_well_goes_on_and_the_best_of_several(example: Path, first: PipelineResult) -> None:
    """Three samples of each picture, the best of them by score; then only those that score 4 or more."""
    text = (example / "job.yaml").read_text()
    text = text.replace("kind: image_edit_denoise", "kind: image_edit_denoise\n    samples: 3")
    text = text.replace(
        "outputs: {score: number}",
        "outputs: {score: number}\n    best: {by: score}\n"
        "  - {name: keep, target: 'keep.py:Keep', when: score >= 4}",
    )
    (example / "samples.yaml").write_text(text)
    (example / "keep.py").write_text(
        "class Keep:\n    def __call__(self, inputs, item): return {'kept': 1}\n"
    )
    pipeline = Pipeline.from_yaml(example / "samples.yaml", [STEPS])
    result = pipeline.run(devices="cpu*2", out=example / "samples", backend="inline")
    assert {row.status for row in result} <= {"done", "filtered"}
    for row, single in zip(result, first, strict=True):
        scores = [sample["outputs"]["score"] for sample in row.samples]
        assert len(set(scores)) == 3
        assert scores[0] == single.outputs["score"]  # the first sample is the one there would be alone
        assert row.outputs["score"] == max(scores)
        assert (row.status == "done") == (max(scores) >= 4)
        assert sum(sample["status"] == "not chosen" for sample in row.samples) == 2
    again = pipeline.run(devices="cpu*1", out=example / "samples", backend="inline")
    assert again.n_restored == 5 + 15 * 3 + sum(row.status == "done" for row in result)


def test_a_landing_on_the_cpu_is_refused_unless_asked(example: Path) -> None:
    from evenload.errors import NoUsableDevice

    with pytest.raises(NoUsableDevice, match="landed on the CPU"):
        run(example, "nocpu", devices=1)


def test_from_python(example: Path, first: PipelineResult) -> None:
    from PIL import Image

    rows = [json.loads(line) for line in (example / "pairs.jsonl").read_text().splitlines()][:2]
    pictures = [Image.open(example / row["path"]) for row in rows]
    editor = MultiDeviceImageEdit(example / "models" / "edit", devices="cpu*1", backend="inline")
    words = [row["instruction"] for row in rows]
    edited = editor.batch_edit(pictures, words, seed=3, num_inference_steps=2)
    assert len(edited) == 2
    kept = example / "batch"
    again = editor.batch_edit(pictures, words, seed=3, num_inference_steps=2, out=kept)
    assert [one.tobytes() for one in again] == [one.tobytes() for one in edited]
    assert (kept / "results.jsonl").is_file()
    other = editor.batch_edit(pictures, words, seed=4, num_inference_steps=2)
    assert other[0].tobytes() != edited[0].tobytes()
    assert editor.batch_edit([], []) == []
    for picture in pictures:
        picture.close()
