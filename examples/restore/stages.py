"""The two stages of the example: restore a picture, then judge it before and after."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from networks import Denoiser, NoiseJudge, load, quality
from torch import Tensor

from evenload.pipeline import Item, StageContext, read_picture

SMALLEST_EDGE = 16


class Restore:
    """Takes the noise out of the picture at ``path``. Outputs ``restored``, uint8 [height, width, 3]."""

    def __init__(self, context: StageContext, *, weights: str):
        self._device = context.device.torch
        self._network = load(Denoiser(), context.path(weights)).to(self._device)

    @torch.inference_mode()
    def __call__(self, inputs: Mapping[str, Any], item: Item) -> dict[str, Any]:
        noised = read_batch(inputs["path"]).to(self._device)
        return {"restored": to_pixels(self._network(noised))}


class Judge:
    """Scores the picture before and after, and measures the gain where the clean picture is known.

    Outputs ``score_before`` and ``score`` (0..1, 1 is free of noise); with a ``clean`` picture among the
    inputs also ``psnr_before_db``, ``psnr_db`` and ``psnr_gain_db``.
    """

    def __init__(self, context: StageContext, *, weights: str):
        self._device = context.device.torch
        self._network = load(NoiseJudge(), context.path(weights)).to(self._device)

    @torch.inference_mode()
    def __call__(self, inputs: Mapping[str, Any], item: Item) -> dict[str, Any]:
        before, after = read_batch(inputs["path"]), read_batch(inputs["restored"])
        outputs = {"score_before": self._score(before), "score": self._score(after)}
        if "clean" in inputs:
            clean = read_batch(inputs["clean"])
            outputs["psnr_before_db"] = psnr_db(before, clean)
            outputs["psnr_db"] = psnr_db(after, clean)
            outputs["psnr_gain_db"] = round(outputs["psnr_db"] - outputs["psnr_before_db"], 3)
        return outputs

    def _score(self, picture: Tensor) -> float:
        with one_thread():
            return round(quality(self._network(picture.to(self._device)).item()), 4)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: the last bits of the judge depend on their number (the denoiser's do not)."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(n_threads)


def read_batch(path: str | Path) -> Tensor:
    """The picture in a file as a batch of one, float32 [1, 3, height, width] in 0..1."""
    pixels = read_picture(path)
    if min(pixels.shape[:2]) < SMALLEST_EDGE:
        raise ValueError(
            f"{path} is {pixels.shape[1]} x {pixels.shape[0]}; at least {SMALLEST_EDGE} pixels are needed"
        )
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))[None]


def to_pixels(picture: Tensor) -> np.ndarray:
    """A batch of one in 0..1 as uint8 [height, width, 3]."""
    return (255 * picture[0].clamp(0, 1)).round().to(torch.uint8).permute(1, 2, 0).cpu().numpy()


def psnr_db(picture: Tensor, clean: Tensor) -> float:
    """Peak signal-to-noise ratio in decibels; white is 1. At most 100, for pictures that are equal.

    Summed in float64, so that the number of threads does not show in the result.
    """
    if picture.shape != clean.shape:
        raise ValueError(
            f"the clean picture is {list(clean.shape[2:])} pixels, the other {list(picture.shape[2:])}"
        )
    return round(-10 * torch.log10((picture - clean).double().square().mean() + 1e-10).item(), 3)
