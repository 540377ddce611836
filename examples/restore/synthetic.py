"""Procedural pictures to train on: occluding shapes of all sizes, with textures, edges and lettering.

Occluding shapes of every scale ("dead leaves") have the edge and scale statistics of photographs, which is
what a denoiser has to know; no photograph is used. Sources: A. B. Lee, D. Mumford, J. Huang, "Occlusion
models for natural images", IJCV 2001; R. Achddou, Y. Gousseau, S. Ladjal, "Synthetic images as a regularity
prior for image restoration neural networks", SSVM 2021.
"""

import math

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

SIZE = 128  # edge of a finished picture, in pixels
_OVERSAMPLING = 2  # drawn larger and averaged down, so that edges are antialiased
_RADIUS = (4.0, 110.0)  # smallest and largest shape, in drawn pixels


def picture(seed: int, size: int = SIZE) -> np.ndarray:
    """One picture, uint8 [size, size, 3]; equal seeds give equal pictures."""
    rng = np.random.default_rng(seed)
    edge = size * _OVERSAMPLING
    palette = _palette(rng)
    canvas = Image.fromarray(_textured(rng, palette, edge))
    for _ in range(int(rng.integers(4, 9))):
        _draw_leaves(rng, canvas, palette, n_leaves=int(rng.integers(5, 40)))
        textured = Image.fromarray(_textured(rng, palette, edge))
        mask = Image.new("L", (edge, edge))
        _draw_leaves(rng, mask, None, n_leaves=int(rng.integers(3, 12)))
        canvas.paste(textured, mask=mask)
    if rng.random() < 0.4:
        _draw_lettering(rng, canvas, palette)
    if rng.random() < 0.5:
        canvas = canvas.filter(ImageFilter.GaussianBlur(rng.uniform(0.3, 2.0)))
    small = canvas.resize((size, size), Image.Resampling.BOX)
    return _toned(rng, np.asarray(small, dtype=np.float32) / 255)


def _palette(rng: np.random.Generator) -> np.ndarray:
    """A handful of related colours, float [n, 3] in 0..255; a quarter of all palettes is grey."""
    colours = rng.beta(0.8, 0.8, size=(int(rng.integers(4, 12)), 3))
    saturation = 0.0 if rng.random() < 0.25 else rng.beta(1.5, 1.5)
    grey = colours.mean(axis=1, keepdims=True)
    return 255 * (grey + saturation * (colours - grey))


def _colour(rng: np.random.Generator, palette: np.ndarray) -> tuple[int, int, int]:
    red, green, blue = np.clip(palette[rng.integers(len(palette))] + rng.normal(0, 8, 3), 0, 255)
    return int(red), int(green), int(blue)


def _textured(rng: np.random.Generator, palette: np.ndarray, edge: int) -> np.ndarray:
    """A full frame that blends two colours by a texture, uint8 [edge, edge, 3]."""
    kind = rng.choice(3, p=[0.5, 0.25, 0.25])
    if kind == 0:
        field = _fractal(rng, edge, slope=rng.uniform(0.6, 2.2))
    elif kind == 1:
        field = _waves(rng, edge)
    else:
        field = _gradient(rng, edge)
    first, second = palette[rng.integers(len(palette), size=2)]
    second = first + rng.uniform(0.1, 1.0) * (second - first)
    frame = first + field[..., None] * (second - first)
    return np.clip(frame, 0, 255).astype(np.uint8)


def _fractal(rng: np.random.Generator, edge: int, slope: float) -> np.ndarray:
    """Noise whose amplitude falls as frequency ** -slope, about 0..1, float [edge, edge]."""
    frequency = np.hypot(np.fft.fftfreq(edge)[:, None], np.fft.rfftfreq(edge)[None, :])
    frequency[0, 0] = np.inf
    spectrum = np.fft.rfft2(rng.standard_normal((edge, edge))) * frequency**-slope
    field = np.fft.irfft2(spectrum, s=(edge, edge))
    return 0.5 + 0.25 * field / field.std()


def _waves(rng: np.random.Generator, edge: int) -> np.ndarray:
    rows, columns = np.mgrid[0:edge, 0:edge] / edge
    angle, phase = rng.uniform(0, math.pi), rng.uniform(0, 2 * math.pi)
    along = rows * math.sin(angle) + columns * math.cos(angle)
    across = columns * math.sin(angle) - rows * math.cos(angle)
    bend = rng.uniform(0, 0.1) * np.sin(2 * math.pi * rng.uniform(0.5, 3) * across)
    wave = np.sin(2 * math.pi * rng.uniform(3, 40) * (along + bend) + phase)
    return 0.5 + 0.5 * (np.sign(wave) if rng.random() < 0.3 else wave)


def _gradient(rng: np.random.Generator, edge: int) -> np.ndarray:
    rows, columns = np.mgrid[0:edge, 0:edge] / edge
    angle = rng.uniform(0, 2 * math.pi)
    return 0.5 + (rows - 0.5) * math.sin(angle) + (columns - 0.5) * math.cos(angle)


def _draw_leaves(rng, canvas: Image.Image, palette: np.ndarray | None, n_leaves: int) -> None:
    """Draw shapes of all scales alike; white ones where there is no palette (a mask)."""
    draw = ImageDraw.Draw(canvas)
    for _ in range(n_leaves):
        radius = math.exp(rng.uniform(math.log(_RADIUS[0]), math.log(_RADIUS[1])))
        centre = rng.uniform(0, canvas.width, size=2)
        fill = 255 if palette is None else _colour(rng, palette)
        kind = rng.integers(4)
        if kind == 0:
            reach = radius * np.array([1.0, rng.uniform(0.4, 1.0)])
            draw.ellipse([*(centre - reach), *(centre + reach)], fill=fill)
        elif kind == 3:
            offset = rng.normal(0, 2 * radius, size=2)
            draw.line([*centre, *(centre + offset)], fill=fill, width=int(rng.integers(1, 8)))
        else:
            n_corners = int(rng.integers(3, 8))
            angles = np.sort(rng.uniform(0, 2 * math.pi, n_corners))
            reach = radius * rng.uniform(0.6, 1.3, n_corners)
            corners = centre[:, None] + reach * np.stack([np.cos(angles), np.sin(angles)])
            draw.polygon([(float(x), float(y)) for x, y in corners.T], fill=fill)


def _draw_lettering(rng: np.random.Generator, canvas: Image.Image, palette: np.ndarray) -> None:
    draw = ImageDraw.Draw(canvas)
    for _ in range(int(rng.integers(1, 6))):
        letters = "".join(chr(code) for code in rng.integers(33, 127, int(rng.integers(4, 24))))
        corner = tuple(rng.uniform(-10, canvas.width, size=2))
        draw.text(corner, letters, fill=_colour(rng, palette), font_size=float(rng.uniform(12, 40)))


def _toned(rng: np.random.Generator, pixels: np.ndarray) -> np.ndarray:
    """Random exposure and contrast, as photographs have them; uint8."""
    contrast, brightness = rng.uniform(0.5, 1.1), rng.uniform(-0.15, 0.15)
    toned = np.clip(0.5 + contrast * (pixels - 0.5) + brightness, 0, 1) ** rng.uniform(0.7, 1.4)
    return np.round(255 * toned).astype(np.uint8)
