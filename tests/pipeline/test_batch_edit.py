"""Editing pictures from Python: loaded once, the same bytes for any number of workers, clear refusals."""

import io
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from evenload.errors import ConfigError, ExecutorClosed, TaskError
from evenload.events import Event, Idle, ItemFinished, Note, WorkerStarted
from evenload.pipeline import MultiDeviceImageEdit

torch = pytest.importorskip("torch")
STEPS = {"num_inference_steps": 1}
WORDS = ["make the sky red", "give it a hat", "remove the person", "make it night"]


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def pictures(tiny_models: Path) -> list[Any]:
    from evenload.pipeline.stages import tiny

    return [tiny.picture(n) for n in range(4)]


@pytest.fixture(scope="module")
def expected(tiny_models: Path, pictures: list[Any]) -> list[bytes]:
    with MultiDeviceImageEdit(tiny_models / "edit", devices="cpu*1", backend="inline") as editor:
        return content(editor.batch_edit(pictures, WORDS, **STEPS))


def content(edited: list[Any]) -> list[bytes]:
    return [one.tobytes() for one in edited]


def loads(events: list[Event]) -> list[tuple[str, str]]:
    return [(e.device, e.why) for e in events if isinstance(e, Idle) and e.why.startswith("loads")]


def twice(editor: MultiDeviceImageEdit, pictures: list[Any], events: list[Event]) -> tuple[list, list, int]:
    """Bytes of two calls, and how many workers the second one was told of as new processes."""
    first = content(editor.batch_edit(pictures, WORDS, **STEPS))
    loaded = loads(events)
    assert len(loaded) >= 3
    pids = {event.pid for event in events if isinstance(event, WorkerStarted)}
    events.clear()
    halves = [content(editor.batch_edit(pictures[at : at + 2], WORDS[at : at + 2], **STEPS)) for at in (0, 2)]
    assert not set(loads(events)) & set(loaded), "a worker may have come to a stage only now, but once"
    new = {event.pid for event in events if isinstance(event, WorkerStarted)} - pids
    return first, halves, len(new)


def test_loaded_once_and_equal_for_any_number_of_workers(
    tiny_models: Path, pictures: list[Any], expected: list[bytes]
) -> None:
    events: list[Event] = []
    with MultiDeviceImageEdit(
        tiny_models / "edit", devices="cpu*2", backend="inline", sinks=[events.append]
    ) as editor:
        first, halves, _ = twice(editor, pictures, events)
    assert first == expected
    assert halves[0] == expected[:2]
    assert halves[1] != expected[2:], "each picture's seed comes from its place in its call"


@pytest.mark.slow
def test_processes_stay_between_calls(
    tiny_models: Path, pictures: list[Any], expected: list[bytes], tmp_path: Path
) -> None:
    events: list[Event] = []
    with MultiDeviceImageEdit(tiny_models / "edit", devices="cpu*2", sinks=[events.append]) as editor:
        first, halves, n_new = twice(editor, pictures, events)
        assert (first, halves[0], n_new) == (expected, expected[:2], 0)
        editor.batch_edit(pictures, WORDS, out=tmp_path / "kept", **STEPS)
        events.clear()
        assert content(editor.batch_edit(pictures, WORDS, out=tmp_path / "kept", **STEPS)) == expected
        assert not any(isinstance(event, WorkerStarted) for event in events)
        other = content(editor.batch_edit(pictures, WORDS, negative_prompt=" ", true_cfg_scale=4.0, **STEPS))
        assert other != expected


def test_what_is_refused(tiny_models: Path, pictures: list[Any], tmp_path: Path) -> None:
    editor = MultiDeviceImageEdit(tiny_models / "edit", devices="cpu*1", backend="inline")
    (tmp_path / "x.png").write_text("no picture")
    pictures[0].save(tmp_path / "whole.png")
    cut = Image.open(io.BytesIO((tmp_path / "whole.png").read_bytes()[:400]))
    refused: list[tuple[str, Any, Any, dict]] = [
        ("4 pictures and 3 instructions", pictures, WORDS[:3], {}),
        ("images is one Image", pictures[0], WORDS[:1], {}),
        ("instructions is one str", pictures[:1], WORDS[0], {}),
        ("instruction 1 is ''", pictures[:2], [WORDS[0], ""], {}),
        ("instruction 0 is None", pictures[:1], [None], {}),
        ("picture 1: .* is not a picture", [pictures[0], tmp_path / "x.png"], WORDS[:2], {}),
        ("picture 0: there is no file", ["none.png"], WORDS[:1], {}),
        ("picture 1: .* no picture", [pictures[0], np.zeros((3, 3, 7), np.uint8)], WORDS[:2], {}),
        ("on_error='ignore'", pictures[:1], WORDS[:1], {"on_error": "ignore"}),
        ("prompt= is one for all", pictures[:1], WORDS[:1], {"prompt": "x"}),
        ("picture 1: it cannot be read", [pictures[0], cut], WORDS[:2], {}),
        ("generator is a Generator", pictures[:1], WORDS[:1], {"generator": torch.Generator()}),
        ("job.seed: .* integer", pictures[:1], WORDS[:1], {"seed": "first"}),
    ]
    for said, images, words, more in refused:
        with pytest.raises(ConfigError, match=said):
            editor.batch_edit(images, words, **more)
    assert editor.batch_edit([], []) == []
    with pytest.raises(ConfigError, match="no model folder"):
        MultiDeviceImageEdit(tmp_path / "none")
    editor.close()
    editor.close()
    with pytest.raises(ExecutorClosed):
        editor.batch_edit(pictures, WORDS)


def test_one_that_fails_stands_in_its_place(
    tiny_models: Path, pictures: list[Any], expected: list[bytes]
) -> None:
    events: list[Event] = []
    with MultiDeviceImageEdit(
        tiny_models / "edit", devices="cpu*1", backend="inline", sinks=[events.append]
    ) as editor:
        wrong = {"num_inference_steps": 1, "sigma": 3}
        given = (picture for picture in pictures[:1])
        made = editor.batch_edit(given, WORDS[:1], on_error="return", **wrong)
        assert isinstance(made[0], TaskError)
        assert "sigma" in str(made[0])
        with pytest.raises(TaskError, match="picture 0 was not edited"):
            editor.batch_edit(pictures[:1], WORDS[:1], **wrong)
        with pytest.warns(UserWarning, match="does nothing without a negative_prompt"):
            made = editor.batch_edit(pictures[:1], WORDS[:1], true_cfg_scale=4.0, **STEPS)
        assert content(made) == expected[:1]
        made = editor.batch_edit([pictures[0], None], WORDS[:2], on_error="return", **STEPS)
        assert content(made[:1]) == expected[:1]
        assert isinstance(made[1], TaskError)
        assert (made[1].index, "picture 1: it is a NoneType" in str(made[1])) == (1, True)
        assert isinstance(editor.batch_edit([None], WORDS[:1], on_error="return")[0], TaskError)
        with pytest.raises(ConfigError, match="picture 1: it is a NoneType"):
            editor.batch_edit([pictures[0], None], WORDS[:2], **STEPS)
    assert any(isinstance(event, Note) for event in events)


def test_ctrl_c_ends_the_call_and_not_the_editor(
    tiny_models: Path, pictures: list[Any], expected: list[bytes], tmp_path: Path
) -> None:
    is_first = [True]

    def interrupt(event: Event) -> None:
        if isinstance(event, ItemFinished) and event.stage == "decode" and is_first:
            is_first.clear()
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with MultiDeviceImageEdit(
            tiny_models / "edit", devices="cpu*1", backend="inline", sinks=[interrupt]
        ) as editor:
            with pytest.raises(KeyboardInterrupt):
                editor.batch_edit(pictures, WORDS, out=tmp_path / "kept", **STEPS)
            assert len(list((tmp_path / "kept/outputs/decode").iterdir())) >= 1
            assert content(editor.batch_edit(pictures, WORDS, out=tmp_path / "kept", **STEPS)) == expected
    finally:
        signal.signal(signal.SIGINT, before)
