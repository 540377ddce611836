"""The journal: finished results on disk, so that a run that was killed can go on."""

from typing import TYPE_CHECKING

from evenload._lazy import lazy_names

if TYPE_CHECKING:
    from evenload.executor.journal.journal import Journal

__getattr__, __dir__, __all__ = lazy_names(__name__, {"journal": "Journal"})
