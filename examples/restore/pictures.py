"""Write the real pictures of the example, noised by a known amount, and the truth about each.

    python examples/restore/pictures.py [FOLDER]

FOLDER (default: pictures/ beside this file) gets ``noised/*.png``, ``clean/*.png`` and ``truth.csv`` with the
columns ``id, sigma, clean``. The pictures are those that lie inside the scikit-image package: nothing is
downloaded.
"""

import argparse
import csv
from pathlib import Path

import numpy as np
from PIL import Image

NAMES = (
    "astronaut.png", "brick.png", "camera.png", "chelsea.png", "coffee.png", "coins.png",
    "hubble_deep_field.jpg", "ihc.png", "moon.png", "motorcycle_left.png", "retina.jpg", "rocket.jpg",
)  # fmt: skip
LEVELS = (0.05, 0.10, 0.15)  # standard deviation of the noise, where white is 1
SHORT_EDGE, LONG_EDGE = 320, 384


def source_folder() -> Path:
    """Where scikit-image keeps the pictures that come with it."""
    try:
        import skimage.data
    except ImportError as error:
        raise SystemExit(f"{error}: the example's pictures come with it; pip install scikit-image") from error
    return Path(skimage.data.__file__).parent


def prepared(path: Path) -> Image.Image:
    """The picture as RGB, at most SHORT_EDGE by LONG_EDGE pixels, the middle of it."""
    with Image.open(path) as opened:
        picture = opened.convert("RGB")
    shrink = min(1.0, SHORT_EDGE / min(picture.size))
    picture = picture.resize([round(edge * shrink) for edge in picture.size], Image.Resampling.LANCZOS)
    left, top = (max(0, edge - LONG_EDGE) // 2 for edge in picture.size)
    return picture.crop(
        (left, top, left + min(picture.width, LONG_EDGE), top + min(picture.height, LONG_EDGE))
    )


def noised(clean: Image.Image, sigma: float, seed: int) -> Image.Image:
    """Add gaussian noise of standard deviation ``sigma`` (white is 1), clip, and round to 8 bits."""
    pixels = np.asarray(clean, dtype=np.float64) / 255
    noisy = pixels + np.random.default_rng(seed).normal(0, sigma, pixels.shape)
    return Image.fromarray(np.round(255 * np.clip(noisy, 0, 1)).astype(np.uint8))


def write(folder: Path, seed: int = 0) -> int:
    """Write all pictures at all noise levels into ``folder``; returns how many noised ones there are."""
    sources = [path for name in NAMES if (path := source_folder() / name).is_file()]
    if len(sources) < len(NAMES):
        print(f"only {len(sources)} of {len(NAMES)} pictures come with this scikit-image")
    (folder / "noised").mkdir(parents=True, exist_ok=True)
    (folder / "clean").mkdir(exist_ok=True)
    rows = []
    for number, source in enumerate(sources):
        clean = prepared(source)
        clean.save(folder / "clean" / f"{source.stem}.png", compress_level=1)
        for level, sigma in enumerate(LEVELS):
            name = f"{source.stem}-{round(100 * sigma):02d}"
            noisy = noised(clean, sigma, seed=seed + 100 * number + level)
            noisy.save(folder / "noised" / f"{name}.png", compress_level=1)  # noise is not made smaller
            rows.append({"id": name, "sigma": sigma, "clean": f"clean/{source.stem}.png"})
    with (folder / "truth.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["id", "sigma", "clean"])
        writer.writeheader()
        writer.writerows(rows)
    return len(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent / "pictures")
    folder = parser.parse_args().folder
    print(f"{write(folder)} noised pictures in {folder}")


if __name__ == "__main__":
    main()
