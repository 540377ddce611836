"""Shapes of a two-dimensional convolution with stride and dilation 1, and how its work is cut into tiles."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from evenload.native import machine

WIDEST_TILE = 8  # output channels, or places
WIDEST_RUN = 28  # neighbouring places, or taps, that share a vector of channels
LEAST_SUMS = 10  # that hide how long one product takes


@dataclass(frozen=True, slots=True)
class Geometry:
    """The shape of a convolution of images [c_in, height, width] by [c_out, c_in, k_height, k_width]."""

    c_in: int
    c_out: int
    height: int
    width: int
    k_height: int
    k_width: int
    pad_height: int
    pad_width: int

    @property
    def out_height(self) -> int:
        return self.height + 2 * self.pad_height - self.k_height + 1

    @property
    def out_width(self) -> int:
        return self.width + 2 * self.pad_width - self.k_width + 1

    @property
    def taps(self) -> int:
        return self.k_height * self.k_width

    @property
    def padded(self) -> tuple[int, int]:
        """Rows and columns of an image with its padding."""
        return self.height + 2 * self.pad_height, self.width + 2 * self.pad_width

    def turned(self) -> "Geometry":
        """The convolution that gives gradients of inputs from those of outputs, if it ``is_possible``."""
        return Geometry(
            self.c_out,
            self.c_in,
            self.out_height,
            self.out_width,
            self.k_height,
            self.k_width,
            self.k_height - 1 - self.pad_height,
            self.k_width - 1 - self.pad_width,
        )

    @property
    def is_possible(self) -> bool:
        """Are there outputs, and is the padding smaller than the kernel?"""
        is_some = min(self.c_in, self.c_out, self.out_height, self.out_width) > 0
        return is_some and self.pad_height < self.k_height and self.pad_width < self.k_width


def scratch_bytes(g: Geometry, lanes: int, n_bytes: int) -> int:
    """Bytes for the padded images of a block of samples, in and out, and for the weights of a client."""
    images = sum(f.c_in * f.padded[0] * f.padded[1] for f in (g, g.turned()))
    return n_bytes * (lanes * images + g.c_in * g.c_out * g.taps) + 256


def channel_scratch_bytes(g: Geometry, lanes: int, n_bytes: int) -> int:
    """Bytes of scratch where vectors hold channels: a padded image, a client's weights in whole vectors."""
    images = max(
        f.c_in * f.padded[0] * f.padded[1] for f in (g, g.turned()) if f.pad_height or f.pad_width or f is g
    )
    tables = max((g.taps * f.c_in + 1) * -(-f.c_out // lanes) * lanes for f in (g, g.turned()))
    return n_bytes * (images + tables) + 256


def tile(channels: int, width: int) -> tuple[int, int]:
    """Output channels and places of a tile, for the fewest loads per product and little work done twice."""

    def cost(size: tuple[int, int]) -> float:
        o, x = size
        twice = -(-width // x) * x / width
        return twice * (1 + (o + x) / (o * x)) * (1 if o * x >= WIDEST_TILE else 2)

    options = [
        (o, x)
        for o in range(1, min(channels, WIDEST_TILE) + 1)
        for x in range(1, min(width, WIDEST_TILE) + 1)
        if o * x <= most_sums() and channels % o == 0
    ]
    return min(options, key=cost)


def channel_tile(n_vectors: int, width: int) -> tuple[int, int]:
    """Vectors of output channels and places of a tile, for few loads and little work done twice."""
    return min(
        _channel_sizes(n_vectors, width),
        key=lambda size: _channel_cost(size, -(-width // size[1]) * size[1] / width),
    )


def channel_run(n_vectors: int, total: int) -> tuple[int, int]:
    """Vectors and neighbouring taps of a tile of sums of weights, of which there are ``total`` in a row."""
    return min(
        _channel_sizes(n_vectors, total),
        key=lambda size: _channel_cost(size) + (-(-total // size[1]) * size[1] - total) / total,
    )


def _channel_sizes(n_vectors: int, width: int) -> list[tuple[int, int]]:
    """(vectors, places) of all tiles whose sums, and the factors of one product, fit the registers."""
    return [
        (v, x)
        for v in range(1, min(n_vectors, WIDEST_RUN) + 1)
        for x in range(1, min(width, WIDEST_RUN) + 1)
        if v * x + v + 1 <= n_registers() and n_vectors % v == 0
    ]


def _channel_cost(size: tuple[int, int], twice: float = 1.0) -> float:
    """Loads for each product, or the time that products wait for one another, where a part is done twice."""
    v, x = size
    return twice * (1 + (v + x) / (v * x) / 2) * max(1, LEAST_SUMS / (v * x))


def n_registers() -> int:
    return 32 if "avx512f" in machine.host_features() else 16


def most_sums() -> int:
    """Most sums of a tile: of 32 or 16 vector registers, some are for factors."""
    return 24 if "avx512f" in machine.host_features() else 10


def widest(total: int, most: int) -> int:
    """The largest divisor of ``total`` that is at most ``most`` and WIDEST_TILE."""
    return next(size for size in range(max(1, min(total, most, WIDEST_TILE)), 0, -1) if total % size == 0)


def blocks(total: int, size: int) -> Iterator[tuple[int, int, int]]:
    """(first, number of blocks, size) of runs of blocks that cover ``total``."""
    if total >= size:
        yield 0, total // size, size
    if total % size:
        yield total - total % size, 1, total % size


def rows_inside(f: Any, padding: int, offset: Any, height: int, count: int) -> tuple[Any, Any]:
    """The range of ``count`` rows from ``offset`` in a padded image that lie in the image itself."""
    code = f.code
    return code.max(0, code.sub(padding, offset)), code.min(count, code.sub(padding + height, offset))


def weight_between(f: Any, g: Geometry, weights: Any, out: Any, c: Any, tap: Any, is_turned: bool) -> Any:
    """The weight of [out, in, taps] from channel ``c`` to ``out``, or that of the turned convolution."""
    code = f.code
    pair = code.add(code.mul(c, g.c_out), out) if is_turned else code.add(code.mul(out, g.c_in), c)
    own_tap = code.sub(g.taps - 1, tap) if is_turned else tap
    source = code.add(code.mul(pair, g.taps), own_tap)
    return f.scalar(code.add(weights, code.mul(source, f.n_bytes)))
