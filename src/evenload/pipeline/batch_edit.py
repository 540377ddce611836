"""Edit many pictures over all devices, from Python: pictures and instructions in, pictures out, in order."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evenload._optional import require
from evenload.errors import ConfigError, TaskError
from evenload.pipeline.artifacts import encode_artifact, open_picture, write_atomically
from evenload.pipeline.results import ItemResult
from evenload.pipeline.seeds import item_seed
from evenload.pipeline.stage import Item

__all__ = ["MultiDeviceImageEdit"]


class MultiDeviceImageEdit:
    """A QwenImageEdit or QwenImageEditPlus checkpoint over every device.

        editor = MultiDeviceImageEdit("/models/Qwen-Image-Edit", devices="cuda:0,1,2")
        edited = editor.batch_edit(pictures, instructions, num_inference_steps=40)

    model    its folder
    devices  which: "all", "cuda:0,1", "cpu*2", a number
    dtype    auto takes what the files say
    mode     how it is spread: auto, single, data_parallel, model_parallel, stage_parallel, swap
    fit      ways to hold the model, in the order in which they are tried
    reserve  what is left free on each device

    Each call starts workers and loads the model: give it all pictures at once. Needs the extras ``yaml`` and
    ``diffusion``.
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
        **params: Any,
    ):
        self._model = {"path": str(Path(model).expanduser().resolve()), "dtype": dtype}
        self._devices, self._mode, self._backend = devices, mode, backend
        self._fit, self._reserve, self._params = list(fit), reserve, params

    def batch_edit(
        self,
        images: Sequence[Any],
        instructions: Sequence[str],
        *,
        seed: int = 0,
        negative_prompt: str | None = None,
        out: str | Path | None = None,
        on_error: str = "raise",
        **call: Any,
    ) -> list[Any]:
        """Edit each picture by its instruction; returns PIL images in the same order.

        images           PIL images, arrays as PNG takes them, or paths
        seed             each picture's own seed comes from this and its place
        negative_prompt  without one, ``true_cfg_scale`` does nothing
        out              a run folder: what is finished stays, and the same call goes on from there
        on_error         "raise" the first picture's TaskError, or "return" it in its place
        call             for the pipeline: num_inference_steps, true_cfg_scale, height, width, ...
        Raises ConfigError if the numbers differ or a picture is none, and what running a pipeline raises.
        """
        if len(images) != len(instructions):
            raise ConfigError(
                f"{len(images)} pictures and {len(instructions)} instructions", hint="give one for each"
            )
        if on_error not in ("raise", "return"):
            raise ConfigError(f"on_error={on_error!r} is unknown", hint="use 'raise' or 'return'")
        if not images:
            return []
        with tempfile.TemporaryDirectory(prefix="evenload-") as scratch:
            folder = Path(out).resolve() if out is not None else Path(scratch) / "run"
            call = {**call} if negative_prompt is None else {**call, "negative_prompt": negative_prompt}
            pipeline = self._pipeline(
                folder.parent / f"{folder.name}.inputs", images, instructions, seed, call
            )
            result = pipeline.run(out=folder, backend=self._backend)
            edited = [_picture_of(row, folder) for row in result]
        if on_error == "raise":
            for one in edited:
                if isinstance(one, Exception):
                    raise one
        return edited

    def _pipeline(
        self,
        inputs: Path,
        images: Sequence[Any],
        instructions: Sequence[str],
        seed: int,
        call: dict[str, Any],
    ) -> Any:
        require("pydantic", extra="yaml", why="checking the job")
        from evenload.pipeline.run import Pipeline
        from evenload.pipeline.spec import JobSpec

        items = []
        for at, (image, instruction) in enumerate(zip(images, instructions, strict=True)):
            name = f"{at:06d}"
            values = {"path": str(_saved(image, inputs / f"{name}.png")), "instruction": instruction}
            items.append((Item(at, name, item_seed(seed, name)), values))
        spec = JobSpec.model_validate(self._document(seed, call), context={"folder": None})
        return Pipeline(spec, items, inputs.parent)

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


def _saved(image: Any, path: Path) -> Path:
    """The picture's file: the one that it has, or a new one. An equal one that is there stays."""
    if isinstance(image, str | Path):
        open_picture(image)
        return Path(image).resolve()
    content = encode_artifact(image, "png")
    if not path.is_file() or path.read_bytes() != content:
        write_atomically(path, content)
    return path


def _picture_of(row: ItemResult, folder: Path) -> Any:
    """The edited picture, or the error in its place."""
    if row.status == "done":
        return open_picture(folder / str(row.outputs["edited"]))
    why = row.error
    text = f"{why.stage}: {why.type}: {why.message}" if why else "the run ended before its turn"
    return TaskError(f"picture {row.index} was not edited: {text}", index=row.index)
