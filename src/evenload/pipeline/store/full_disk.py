"""Report a disk that takes no more once, and never as the failure of an item: it is full, or not ours now.

Results are kept in the ledger as they come, so that none is lost. What a run writes at its end
(results.jsonl, summary, trace, report) is tried file by file: one that does not fit does not cost the others.
"""

import contextlib
import errno
import os
from collections.abc import Iterator

from evenload.errors import EvenloadError, reason_of
from evenload.pipeline.artifacts import UNWRITABLE

HINT = "make room there, or get leave to write, and run again: what is done is not done again"
_FULL = (*(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)), UNWRITABLE)


def says_full(text: str) -> bool:
    """Return whether an error's text says that the disk is full, over its quota, read-only or out of reach.

    The error may be of a stage, which may not be allowed to read an input; so the last is only what
    ``write_output`` says of a file in the run folder.
    """
    return any(words in text for words in _FULL)


class FinalWrites:
    """The files that a run writes at its end. ``failed``: which could not be written, and why."""

    def __init__(self) -> None:
        self.failed: list[tuple[str, str]] = []

    @contextlib.contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Enclose the writing of ``name``: note an error of the file system, raise any other."""
        try:
            yield
        except OSError as error:
            self.failed.append((name, reason_of(error)))
        except EvenloadError as error:
            if not isinstance(error.__cause__, OSError):
                raise
            self.failed.append((name, error.__cause__.strerror or str(error.__cause__)))

    def raise_with(self, error: Exception | None) -> None:
        """Raise ``error``, which ended the run, with the files that could not be written; or those alone."""
        reasons = ", ".join(dict.fromkeys(why for _, why in self.failed))
        text = f"could not be written: {', '.join(name for name, _ in self.failed)} ({reasons})"
        if error is None and self.failed:
            raise EvenloadError(text, hint=HINT)
        if error is not None:
            if self.failed:
                error.add_note(text)
                if isinstance(error, EvenloadError):
                    error.message += f"\n  {text}"
            raise error
