"""A replay as one HTML file that opens offline: imbalance against the bound, a heat map of GPUs, what moving
costs.
"""

import base64
import hashlib
import os
import tempfile
from importlib import resources
from pathlib import Path
from typing import Any

from evenload._version import __version__
from evenload.errors import ConfigError
from evenload.moe.replay.replayer import Replay
from evenload.report.html import as_script_text, asset

__all__ = ["page", "page_of", "write_replay"]

SCRIPTS = ("dom", "format", "theme")  # of the report, before our own
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def page(replay: Replay) -> str:
    """The page. What comes from the trace is one JSON block; scripts write it as text, never as markup."""
    return page_of(replay.to_json())


def page_of(view: dict[str, Any]) -> str:
    """The page of what ``Replay.to_json`` gave. Raises ConfigError if it is no such object."""
    try:
        best = min(view["courses"], key=lambda course: course["mean"])
        headline = f"Busiest GPU over the mean: {best['mean']:.3f} by {best['name']}."
        title = f"Replay of {view['trace']}"
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"this is no replay: {error!r}", hint="give what moe replay --json wrote"
        ) from error
    shared = "\n".join(asset(f"js/{name}.js") for name in SCRIPTS)
    scripts = {
        "echarts": asset("echarts.min.js"),
        "report": '(() => {\n"use strict";\n' + shared + _own("replay.js") + "})();\n",
    }
    hashes = " ".join(f"'sha256-{_hash(text)}'" for text in scripts.values())
    parts = {
        "policy": f"{_POLICY}; script-src {hashes}",
        "title": _escaped(title),
        "style": asset("report.css") + _own("replay.css"),
        "headline": _escaped(headline),
        "view": as_script_text(view | {"version": __version__}),
        **scripts,
    }
    content = []
    for piece in asset("page.html").split("{{"):
        name, mark, rest = piece.partition("}}")
        content.append(parts[name.strip()] + rest if mark else piece)
    return "".join(content)


def write_replay(replay: Replay, path: str | Path) -> None:
    """Write the page to ``path``; it appears whole or not at all. Raises ConfigError if that is no place to
    write.
    """
    path = Path(path)
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(page(replay))
        os.chmod(name, 0o644)
        os.replace(name, path)
    except OSError as error:
        raise ConfigError(
            f"cannot write {str(path)!r}: {error.strerror}", hint="choose another place with --html"
        ) from error


def _own(name: str) -> str:
    return (resources.files("evenload.moe.replay") / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _escaped(text: str) -> str:
    for mark, escaped in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("'", "&#39;")):
        text = text.replace(mark, escaped)
    return "".join(mark if mark.isprintable() else "�" for mark in text)
