"""Progress of copying a run's results to a store, on a terminal."""

import sys
from typing import TextIO

__all__ = ["UploadProgress"]


class UploadProgress:
    """A line on a terminal that says how many files are still to be copied; called again and again.

    hint  what ending it means, in words
    """

    def __init__(self, hint: str, *, shows: bool = True, stream: TextIO | None = None):
        self._stream = sys.stderr if stream is None else stream
        self._hint, self._shows, self._width = hint, shows and self._stream.isatty(), 0

    def __call__(self, n_left: int, n_files: int) -> None:
        if not self._shows or not n_files:
            return
        text = (
            f"copying results: {max(0, n_files - n_left)} of {n_files} files ({self._hint})" if n_left else ""
        )
        self._stream.write("\r" + text.ljust(self._width) + ("" if text else "\r"))
        self._stream.flush()
        self._width = len(text)
