"""Where this user's own files belong: the folders of the XDG base directory specification."""

import os
from collections.abc import Mapping
from pathlib import Path

NOWHERE = Path(os.devnull)
"""Stands for a home that is not there: nothing can be read or made below it, whoever tries."""


def user_folder(variable: str, default: str, environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of this program that the ``variable`` names, else the one in ``default`` of the home folder.

    A relative path in the variable is passed over, as the specification asks. Where there is no home (a user
    without an entry, HOME that is empty, relative or not there) it is a path at which every attempt to read
    or write is an OSError: nobody's home is made here.
    """
    base = Path(environ.get(variable) or "")
    return (base if base.is_absolute() else _home() / default) / "evenload"


def user_cache(environ: Mapping[str, str] = os.environ) -> Path:
    """``$XDG_CACHE_HOME/evenload``, or the same under the platform's usual place: ``~/.cache``."""
    is_windows = environ.get("LOCALAPPDATA") and not environ.get("XDG_CACHE_HOME")
    return user_folder("LOCALAPPDATA" if is_windows else "XDG_CACHE_HOME", ".cache", environ)


def _home() -> Path:
    if os.environ.get("HOME") == "":
        return NOWHERE
    try:
        home = Path.home()
    except RuntimeError:
        return NOWHERE
    return home if home.is_absolute() and home.is_dir() else NOWHERE
