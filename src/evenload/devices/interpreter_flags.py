"""The flags of this interpreter, as words for the command line of another one that must behave the same."""

import os
import sys

LETTERS = {  # of the attribute of ``sys.flags``, which counts how often the letter was given
    "optimize": "O",
    "bytes_warning": "b",
    "dont_write_bytecode": "B",
    "no_site": "S",
    "verbose": "v",
    "quiet": "q",
    "debug": "d",
}
ISOLATION = {"ignore_environment": "E", "no_user_site": "s", "safe_path": "P"}  # -I is all three


def interpreter_flags() -> list[str]:
    """Return the words that give a new interpreter this one's flags, wherever this one has them from.

    Left out are those that say what to run (``-c``, ``-m``) and ``-i``.
    """
    words = [f"-{letter * n}" for name, letter in LETTERS.items() if (n := int(getattr(sys.flags, name)))]
    words += isolation_flags()
    if sys.flags.hash_randomization and os.environ.get("PYTHONHASHSEED") == "0":
        words.append("-R")
    words += [f"-W{option}" for option in _warning_options()]
    options = {**getattr(sys, "_xoptions", {}), "utf8": str(sys.flags.utf8_mode)}
    if sys.flags.dev_mode:
        options["dev"] = True
    for name, value in options.items():
        words += ["-X", name if value is True else f"{name}={value}"]
    return words


def isolation_flags() -> list[str]:
    """Return those of ``interpreter_flags`` that keep it from ``PYTHONPATH`` or the user's own packages."""
    if sys.flags.isolated:
        return ["-I"]
    return [f"-{letter}" for name, letter in ISOLATION.items() if getattr(sys.flags, name)]


def _warning_options() -> list[str]:
    """Return what was given with ``-W``, without those that other flags imply."""
    implied = {"default"} if sys.flags.dev_mode else set()
    if sys.flags.bytes_warning:
        implied.add("error::BytesWarning" if sys.flags.bytes_warning > 1 else "default::BytesWarning")
    return [option for option in sys.warnoptions if option not in implied]
