"""Edit many pictures over all devices from Python: pictures and instructions in, pictures out, in order.

Workers stay between calls, with the models that their devices can hold.
"""

import json
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenload._closing import Closing
from evenload._optional import require
from evenload._plain_text import plain
from evenload.errors import ConfigError, ExecutorClosed, FormatError, TaskError, quoted, reason_of
from evenload.events import Event, json_text
from evenload.pipeline.artifacts import open_picture, plain_picture, write_atomically
from evenload.pipeline.dispatch.results import ItemResult
from evenload.pipeline.file_types import encode_artifact
from evenload.pipeline.pipeline import Pipeline
from evenload.pipeline.run.workers.worker_cache import KeptWorkers
from evenload.pipeline.seeds import item_seed
from evenload.pipeline.stage import Item

if TYPE_CHECKING:
    from evenload.pipeline.dispatch.item_flow import ItemFlow
    from evenload.pipeline.job.spec import JobSpec
    from evenload.pipeline.planning.planner import Watch
    from evenload.pipeline.reuse.decision import StageReuse
    from evenload.pipeline.run.machines.fleet import RunFleet
    from evenload.pipeline.store.kept_results import ReuseSettings
    from evenload.pipeline.store.run_folder import RunFolder


class ResidentJob(Pipeline):
    """A job whose models stay in the workers from one run to the next.

    ``plans`` is filled by the first run on a pool of devices and read by the others: in those the memory
    that is free no longer says what fits, because the models are there already. ``is_kept``: its results
    are there for a later run; else nobody asks what made them.
    """

    def __init__(
        self,
        spec: "JobSpec",
        items: "list[tuple[Item, dict[str, Any]]]",
        folder: Path,
        plans: dict[Any, Any],
        *,
        is_kept: bool = True,
    ):
        self._hold(spec, items, folder)
        self._plans, self._is_kept = plans, is_kept

    def _reusing(
        self, cache: str | Path | None, fresh: Iterable[str] = (), retry_failed: bool = False
    ) -> "AbstractContextManager[ReuseSettings]":
        if self._is_kept:
            return super()._reusing(cache, fresh, retry_failed)
        from evenload.pipeline.store.kept_results import no_reuse

        return no_reuse(self.spec, self.folder)  # weights need not be read to be known again

    def _planned(
        self,
        fleet: "RunFleet",
        folder: "RunFolder",
        watch: "Watch | None",
        flow: "ItemFlow | None",
        reuse: "Sequence[StageReuse]",
    ) -> Any:
        """Plan all stages for all items, whatever is there of them: the models stay for later runs."""
        devices = tuple(device.id for device in fleet.pool)
        if devices not in self._plans:
            self._plans[devices] = self._first_plan(fleet, folder, reuse)
        found = self._plans[devices]
        if found.job_problem.problem.n_items != len(self.items):
            found = self._again(found)
        folder.write_text("plan.json", json_text(found.plan.to_json(), indent=2) + "\n")
        return found

    def _again(self, found: Any) -> Any:
        """The plan for another number of items: who has which model stays, who does how many may not."""
        from evenload.pipeline.planning.job_plan import plan_job

        asked = replace(
            found.job_problem, problem=replace(found.job_problem.problem, n_items=len(self.items))
        )
        same = self.spec.schedule.model_copy(update={"mode": found.plan.mode})
        return found._replace(
            plan=plan_job(self.spec.model_copy(update={"schedule": same}), asked), job_problem=asked
        )

    def _first_plan(self, fleet: "RunFleet", folder: "RunFolder", reuse: "Sequence[StageReuse]") -> Any:
        """All models on each device where they fit whole, so that nothing is loaded twice."""
        asked = self.spec
        if asked.schedule.mode == "auto":
            every = asked.schedule.model_copy(update={"mode": "data_parallel"})
            self.spec = asked.model_copy(update={"schedule": every})
            try:
                found = super()._planned(fleet, folder, None, None, reuse)
                units = [unit for phase in found.plan.phases for unit in phase.units]
                if all(unit.fit.name == "whole" for unit in units):
                    return found
            except ConfigError:
                pass  # they do not fit together
            finally:
                self.spec = asked
        return super()._planned(fleet, folder, None, None, reuse)


class MultiDeviceImageEdit(Closing):
    """An editor of pictures: a QwenImageEdit or QwenImageEditPlus checkpoint over all devices.

        with MultiDeviceImageEdit("/models/Qwen-Image-Edit", devices="cuda:0,1,2") as editor:
            edited = editor.batch_edit(pictures, instructions, num_inference_steps=40)
            again = editor.batch_edit(edited, others, num_inference_steps=40)     # nothing is loaded again

    model    folder of the checkpoint
    devices  which: "all", "cuda:0,1", "cpu*2", a number
    dtype    of the weights; auto takes what the files say
    mode     how the model is spread: auto, single, data_parallel, model_parallel, stage_parallel, swap
    fit      ways to hold the model, in the order in which they are tried
    reserve  memory that is left free on each device
    sinks    are called with every event of every call as it happens

    The first call starts workers and loads the model; they stay until ``close``, the end of the ``with``
    block or of the program. On devices that hold all parts of the model at once nothing is loaded again;
    where they take turns (mode swap), each call loads them in turn. Needs the extras ``jobs`` and
    ``models``.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        devices: str | int = "all",
        dtype: str = "auto",
        mode: str = "auto",
        fit: Sequence[str] = ("whole", "layer_split", "resident_stream"),
        reserve: str = "1GiB",
        backend: str = "process",
        sinks: Iterable[Callable[[Event], None]] = (),
        **params: Any,
    ):
        folder = Path(model).expanduser().resolve()
        if not folder.is_dir():
            raise ConfigError(f"there is no model folder {folder}", hint="give where it was downloaded to")
        self._model = {"path": str(folder), "dtype": dtype}
        self._devices, self._mode = devices, mode
        self._fit = [fit] if isinstance(fit, str) else list(fit)
        self._reserve, self._params = reserve, params
        self._sinks = tuple(sinks)
        self._workers = KeptWorkers(backend)
        self._plans: dict[Any, Any] = {}
        self._turn = threading.Lock()
        self._is_closed = False

    def batch_edit(
        self,
        images: Iterable[Any],
        instructions: Iterable[str],
        *,
        seed: int = 0,
        negative_prompt: str | None = None,
        out: str | Path | None = None,
        on_error: str = "raise",
        **call: Any,
    ) -> list[Any]:
        """Edit each picture by its instruction; returns PIL images in the same order.

        images           PIL images of any mode, arrays as PNG takes them, or paths
        seed             each picture's own seed comes from this and its place
        negative_prompt  without one, ``true_cfg_scale`` does nothing
        out              a run folder: what is finished stays, and the same call goes on from there
        on_error         "raise" the first picture's TaskError, or "return" it in its place
        call             for the pipeline: num_inference_steps, true_cfg_scale, height, width, ...
        Raises ConfigError if the numbers differ, an instruction or (with "raise") a picture is none, or
        ``call`` holds what is neither number, text nor list; ExecutorClosed after ``close``;
        KeyboardInterrupt on Ctrl-C; what running a pipeline raises. What is done stays in ``out``.
        """
        pictures, texts = _checked_inputs(images, instructions)
        if on_error not in ("raise", "return"):
            raise ConfigError(f"on_error={quoted(on_error)} is unknown", hint="use 'raise' or 'return'")
        _check_call(call)
        call = {**call} if negative_prompt is None else {**call, "negative_prompt": negative_prompt}
        with self._turn, tempfile.TemporaryDirectory(prefix="evenload-") as scratch:
            if self._is_closed:
                raise ExecutorClosed("this editor is closed", hint="make a new one")
            if not pictures:
                return []
            folder = Path(out).resolve() if out is not None else Path(scratch) / "run"
            edited = self._edit(folder, pictures, texts, seed, call, on_error == "return", out is not None)
        failures = [one for one in edited if isinstance(one, Exception)]
        if failures and on_error == "raise":
            raise failures[0]
        return edited

    def close(self) -> None:
        """End the workers and free the devices. Closing again does nothing."""
        with self._turn:
            self._is_closed = True
            self._workers.close()

    def _edit(
        self,
        folder: Path,
        images: Sequence[Any],
        texts: Sequence[str],
        seed: int,
        call: dict[str, Any],
        keeps_errors: bool,
        is_kept: bool,
    ) -> list[Any]:
        """Edit the pictures; with ``keeps_errors`` one that cannot be read has its error in its place."""
        require("pydantic", extra="jobs", why="checking the job")
        from evenload.pipeline.job.job_file import spec_of
        from evenload.pipeline.job.yaml_text import Origins

        inputs = folder.parent / f"{folder.name}.inputs"
        items, edited = [], list[Any]([None] * len(images))
        for at, (image, instruction) in enumerate(zip(images, texts, strict=True)):
            name = f"{at:06d}"
            try:
                path = _saved(image, inputs / f"{name}.png", at)
            except ConfigError as error:
                if not keeps_errors:
                    raise
                edited[at] = TaskError(error.message, index=at, hint=error.hint)
                continue
            values = {"path": str(path), "instruction": instruction}
            items.append((Item(at, name, item_seed(seed, name)), values))
        if not items:
            return edited
        spec = spec_of(self._document(seed, call), Origins("batch_edit"))
        for note in spec.notes:
            warnings.warn(plain(note), stacklevel=4)
        job = ResidentJob(spec, items, Path(self._model["path"]).parent, self._plans, is_kept=is_kept)
        result = job.run(out=folder, backend=self._workers, sinks=self._sinks)
        if result.status == "interrupted":
            raise KeyboardInterrupt
        for row in result:
            edited[row.index] = _picture_of(row, folder)
        return edited

    def _document(self, seed: int, call: dict[str, Any]) -> dict[str, Any]:
        shared = {"model": self._model, "params": self._params, "fit": self._fit}
        text = {name: value for name, value in call.items() if name in ("prompt", "negative_prompt")}
        return {
            "version": 1,
            "job": {"name": "batch_edit", "inputs": {"jsonl": "none"}, "seed": seed},
            "devices": {"use": self._devices, "reserve": self._reserve},
            "schedule": {"mode": self._mode},
            "stages": [
                {"name": "encode", "kind": "image_edit_encode", **shared, "call": text,
                 "outputs": {"embeds": "safetensors"}},
                {"name": "denoise", "kind": "image_edit_denoise", **shared, "call": call,
                 "outputs": {"latents": "safetensors"}},
                {"name": "decode", "kind": "image_edit_decode", **shared, "outputs": {"edited": "png"}},
            ],
            "report": {"html": False, "trace": False},
        }  # fmt: skip


def _checked_inputs(images: Any, instructions: Any) -> tuple[list[Any], list[str]]:
    """Return the pictures and their instructions as lists. Raises ConfigError."""
    pictures, texts = _listed(images, "images"), _listed(instructions, "instructions")
    if len(pictures) != len(texts):
        raise ConfigError(f"{len(pictures)} pictures and {len(texts)} instructions", hint="give one for each")
    for at, text in enumerate(texts):
        if not isinstance(text, str) or not text.strip():
            raise ConfigError(f"instruction {at} is {quoted(text)}", hint="give a text for each picture")
    return pictures, texts


def _listed(given: Any, what: str) -> list[Any]:
    """Return ``given`` as a list. Raises ConfigError for one thing where several are expected."""
    is_text = isinstance(given, str | bytes | Path)
    if is_text or hasattr(given, "convert") or not isinstance(given, Iterable):  # convert: a PIL image
        raise ConfigError(f"{what} is one {type(given).__name__}", hint=f"give a list: [{what[:-1]}]")
    return list(given)


def _check_call(call: dict[str, Any]) -> None:
    """Raise ConfigError for a prompt, and for what a run folder cannot hold, such as a generator."""
    if "prompt" in call:
        raise ConfigError("prompt= is one for all pictures", hint="give instructions, one for each")
    for name, value in call.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            hint = "give numbers, texts or lists of them; each picture's seed comes from seed="
            raise ConfigError(f"{name} is a {type(value).__name__}: {error}", hint=hint) from error


def _saved(image: Any, path: Path, at: int) -> Path:
    """Return the picture's file, its own or a new one; an equal file that exists is kept."""
    try:
        if isinstance(image, str | Path):
            open_picture(image)
            return Path(image).resolve()
        content = encode_artifact(_plain(image) if hasattr(image, "convert") else image, "png")
    except FileNotFoundError as error:
        raise ConfigError(f"picture {at}: there is no file {image}", hint="correct the path") from error
    except (ConfigError, FormatError) as error:
        raise ConfigError(f"picture {at}: {error.message}", hint=error.hint) from error
    if not path.is_file() or path.read_bytes() != content:
        write_atomically(path, content)
    return path


def _plain(image: Any) -> Any:
    """Convert a PIL image as its file would be read: upright, RGB. Raises FormatError if it is cut short."""
    try:
        return plain_picture(image)
    except (OSError, SyntaxError, ValueError) as error:  # PIL reads the file only now
        raise FormatError(
            f"it cannot be read: {reason_of(error)}", hint="save it again as PNG or JPEG"
        ) from error


def _picture_of(row: ItemResult, folder: Path) -> Any:
    """Return the edited picture, or a TaskError in its place."""
    if row.status == "done":
        return open_picture(folder / str(row.outputs["edited"]))
    why = row.error
    text = f"{why.stage}: {why.type}: {why.message}" if why else "the run ended before its turn"
    return TaskError(f"picture {row.index} was not edited: {text}", index=row.index)
