"""Thumbnails of a run's pictures, made a few at a time, and held while they are shown and a little longer.

A viewer asks for a picture by the number that the page gave it, never by a path.
"""

import base64
from pathlib import Path
from typing import Any

from evenload.report.page.gallery import Gallery, make_thumbnail

PER_STEP = 8
MOST_GONE = 96


class Pictures:
    """The thumbnails of a run that viewers may ask for, by number."""

    def __init__(self, folder: Path | None):
        self._folder = folder
        self._numbers: dict[str, int] = {}
        self._n_made = self._n_left = 0
        self._thumbs: dict[str, dict[str, Any]] = {}
        self._bytes: dict[int, tuple[str, bytes]] = {}
        self._gone: dict[int, tuple[str, bytes]] = {}  # no longer shown; a viewer may be a frame behind
        self._problems: dict[str, str] = {}
        self.is_complete = True

    def get(self, number: int) -> tuple[str, bytes] | None:
        """Media type and content of picture ``number``."""
        return self._bytes.get(number) or self._gone.get(number)

    def section(self, gallery: Gallery) -> dict[str, Any]:
        """What the page shows of ``gallery``; an item appears once its thumbnails are made."""
        wanted = {path for one in gallery.chosen() for _, path in one.ordered()}
        self._drop_all_but(wanted)
        self.is_complete = wanted <= (self._thumbs.keys() | self._problems.keys())
        self._n_left = PER_STEP
        return gallery.shown(self._thumbnail)

    def _thumbnail(self, path: str) -> tuple[dict[str, Any] | None, str]:
        if path not in self._thumbs and path not in self._problems and self._n_left:
            self._n_left -= 1
            self._make(path)
        return self._thumbs.get(path), self._problems.get(path, "")

    def _drop_all_but(self, wanted: set[str]) -> None:
        for gone in [path for path in self._thumbs if path not in wanted]:
            number = self._numbers.pop(gone)
            self._gone[number] = self._bytes.pop(number)
            del self._thumbs[gone]
        while len(self._gone) > MOST_GONE:
            del self._gone[next(iter(self._gone))]
        self._problems = {path: why for path, why in self._problems.items() if path in wanted}

    def _make(self, path: str) -> None:
        thumb, problem = make_thumbnail(self._folder, path)
        if thumb is None:
            self._problems[path] = problem or "cannot be shown"
            return
        head, _, content = thumb.pop("src").partition(",")
        self._n_made += 1
        number = self._numbers[path] = self._n_made
        self._bytes[number] = (head.removeprefix("data:").partition(";")[0], base64.b64decode(content))
        self._thumbs[path] = {**thumb, "src": f"picture/{number}"}
