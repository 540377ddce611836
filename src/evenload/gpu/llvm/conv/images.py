"""Blocks of samples laid out for convolutions: each place is a vector of samples, zeros around."""

from typing import Any

from evenload.gpu.llvm.conv.geometry import Geometry
from evenload.gpu.llvm.field.floats import Floats

__all__ = ["clear", "pack", "rows_inside"]


def clear(f: Floats, images: Any, g: Geometry) -> None:
    """Write zeros into the padded images, if there is padding; ``pack`` writes the rest."""
    if not (g.pad_height or g.pad_width):
        return
    rows, columns = g.padded
    with f.code.range(0, g.c_in * rows * columns) as place:
        f.store(f.zero(), f.code.add(images, f.code.mul(place, f.row_bytes)))


def pack(f: Floats, source: Any, target: Any, sample_bytes: Any, mask: Any, g: Geometry) -> None:
    """Copy images [c_in, height, width, samples], ``sample_bytes`` a place, into padded ones of a block."""
    code, (rows, columns) = f.code, g.padded
    with code.range(0, g.c_in) as c, code.range(0, g.height) as row:
        line = code.mul(code.add(code.mul(c, g.height), row), g.width)
        at = code.add(source, code.mul(line, sample_bytes))
        place = code.add(code.mul(code.add(code.mul(c, rows), row, g.pad_height), columns), g.pad_width)
        into = code.add(target, code.mul(place, f.row_bytes))
        with code.range(0, g.width) as column:
            value = f.load_first(code.add(at, code.mul(column, sample_bytes)), mask)
            f.store(value, code.add(into, code.mul(column, f.row_bytes)))


def rows_inside(f: Floats, padding: int, offset: Any, height: int, count: int) -> tuple[Any, Any]:
    """The range of ``count`` rows from ``offset`` in a padded image that lie in the image itself."""
    code = f.code
    return code.max(0, code.sub(padding, offset)), code.min(count, code.sub(padding + height, offset))
