"""The pictures of a run as thumbnails inside the page: what went in, what came out, and its numbers.

An item's outputs, over all stages, are numbers ("score", "psnr_gain_db", ...) and paths of pictures
relative to the run folder ("before", "restored", ...). A path that leads out of the folder, a file that is
not a picture and one that is absurdly large are named, not shown.
"""

import base64
import io
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evenload._optional import is_installed
from evenload._private_files import plain_file, read_plain
from evenload.events import Event, ItemFinished, RunStarted

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff"})
MAX_ITEMS = 48
MAX_KEPT = 20_000
THUMB_PX = 448
MAX_FILE_BYTES = 64 << 20
MAX_PLAIN_BYTES = 300_000
_MAGIC = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif"}


@dataclass(slots=True)
class _Item:
    """An item with its pictures and numbers."""

    index: int
    name: str
    pictures: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)
    group: str | None = None

    def ordered(self) -> list[tuple[str, str]]:
        """What went in first, then outputs in the order of their stages; at most four."""
        first = [name for name in ("before", "input", "original", "noisy") if name in self.pictures][:1]
        names = first + [name for name in self.pictures if name not in first]
        return [(name, self.pictures[name]) for name in names[:4]]


class Gallery:
    """The pictures that items left: ``add`` every event; ``to_json(folder)`` makes the thumbnails.

    Of more than ``max_items`` items, those shown are spread evenly over the range of the first score, best
    and worst included.
    """

    def __init__(self, max_items: int = MAX_ITEMS) -> None:
        self.max_items = max_items
        # By name: an index counts within its stage, which does not see the items that failed earlier.
        self._items: dict[str, _Item] = {}
        self._groups: dict[str, str] = {}
        self.first: str | None = None  # what a person sees them sorted by at first
        self._stride = 1

    def add(self, event: Event) -> None:
        if isinstance(event, RunStarted) and isinstance(event.facts.get("sort"), str):
            self.first = event.facts["sort"]
        if not isinstance(event, ItemFinished) or not event.outputs:
            return
        if event.item not in self._items and event.index % self._stride:
            return
        group = event.outputs.get("group")
        if isinstance(group, str) and len(self._groups) < MAX_KEPT:
            self._groups[event.item] = group[:200]
        pictures = {key: path for key, path in event.outputs.items() if _is_picture(path)}
        numbers = {key: float(number) for key, number in event.outputs.items() if _is_number(number)}
        if not pictures and event.item not in self._items:
            return
        one = self._items.setdefault(event.item, _Item(event.index, event.item))
        one.pictures.update(pictures)
        one.numbers.update(numbers)
        one.group = self._groups.get(event.item, one.group)
        if len(self._items) > MAX_KEPT:
            self._stride *= 2
            self._items = {name: kept for name, kept in self._items.items() if kept.index % self._stride == 0}

    def to_json(self, folder: Path | None) -> Mapping[str, Any]:
        return self.shown(lambda path: make_thumbnail(folder, path))

    def shown(self, thumbnail: Callable[[str], tuple[Mapping[str, Any] | None, str]]) -> dict[str, Any]:
        """What the page shows, with the ``thumbnail`` of each path, or why there is none ("": not yet)."""
        shown, problems = [], []
        for one in self.chosen():
            pictures = []
            for label, path in one.ordered():
                thumb, problem = thumbnail(path)
                if thumb:
                    pictures.append({"label": label, "path": path, **thumb})
                elif problem:
                    problems.append(f"{path[:120]}: {problem}")
            if pictures:
                row = {"index": one.index, "item": one.name, "group": one.group, "numbers": one.numbers}
                shown.append({**row, "pictures": pictures})
        return {
            "n_items": self.n_items,
            "items": shown,
            "problems": problems[:20],
            "n_problems": len(problems),
            "sort": self.score_name(),
            "first": self.first,
        }

    @property
    def n_items(self) -> int:
        """Items with pictures; of very many a good guess."""
        return len(self._items) * self._stride

    def score_name(self) -> str | None:
        """The number that items are ranked by: the job's, or the score."""
        names = {name: None for one in self._items.values() for name in one.numbers}
        if self.first in names:
            return self.first
        return "score" if "score" in names else next(iter(names), None)

    def chosen(self) -> list[_Item]:
        """The items to show, in input order."""
        items = list(self._items.values())
        n = self.max_items
        if len(items) <= n:
            return sorted(items, key=lambda one: one.index)
        score = self.score_name()
        items.sort(key=lambda one: (one.numbers.get(score, -math.inf) if score else one.index, one.index))
        picked = [items[round(i * (len(items) - 1) / max(1, n - 1))] for i in range(n)]
        return sorted(picked, key=lambda one: one.index)


def _is_picture(value: Any) -> bool:
    return isinstance(value, str) and Path(value).suffix.lower() in SUFFIXES


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def make_thumbnail(folder: Path | None, path: str) -> tuple[dict[str, Any] | None, str]:
    """``({"src": data URI, "width", "height", "link"}, "")`` of a picture, or ``(None, why not)``."""
    if folder is None:
        return None, ""
    root = folder.resolve()
    try:
        target = (root / path).resolve()
        if not target.is_relative_to(root):
            return None, "lies outside the run folder"
        if not target.is_file():
            return None, "is missing"
        if target.stat().st_size > MAX_FILE_BYTES:
            return None, f"is larger than {MAX_FILE_BYTES >> 20} MiB"
        link = target.relative_to(root).as_posix()
    except (OSError, ValueError) as error:
        return None, f"cannot be opened ({error.__class__.__name__})"
    thumb, problem = _scaled(target) if is_installed("PIL") else _as_it_is(target)
    return ({**thumb, "link": link}, "") if thumb else (None, problem)


def _scaled(target: Path) -> tuple[dict[str, Any] | None, str]:
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            # A picture of absurd size is a warning to Pillow; here it is refused.
            warnings.simplefilter("error")
            with plain_file(target) as file, Image.open(file) as picture:
                picture.draft("RGB", (THUMB_PX * 2, THUMB_PX * 2))
                upright = ImageOps.exif_transpose(picture)
                upright.thumbnail((THUMB_PX, THUMB_PX), Image.Resampling.LANCZOS)
                has_alpha = "A" in upright.getbands() or "transparency" in upright.info
                small = upright.convert("RGBA" if has_alpha else "RGB")
                packed = io.BytesIO()
                small.save(packed, "WEBP", quality=80, method=4)
    except (
        UnidentifiedImageError,
        OSError,
        ValueError,
        SyntaxError,
        Warning,
        Image.DecompressionBombError,
    ) as error:
        return None, f"is not a picture that can be read ({error.__class__.__name__})"
    return {"src": _uri("webp", packed.getvalue()), "width": small.width, "height": small.height}, ""


def _as_it_is(target: Path) -> tuple[dict[str, Any] | None, str]:
    try:
        content = read_plain(target, MAX_PLAIN_BYTES)
    except OSError:
        return None, "is too large to embed as it is; with Pillow it would be a thumbnail"
    for magic, kind in _MAGIC.items():
        if content.startswith(magic):
            return {"src": _uri(kind, content), "width": None, "height": None}, ""
    return None, "is not a PNG, JPEG or GIF; Pillow is needed for others"


def _uri(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
