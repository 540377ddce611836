"""A replay as one HTML file that opens offline: imbalance against the bound, loads of GPUs, transfers."""

from importlib import resources
from pathlib import Path
from typing import Any

from evenload._private_files import write_named
from evenload._version import __version__
from evenload.errors import ConfigError, quoted
from evenload.moe.replay.replayer import RoutingReplay
from evenload.report.html import as_script_text, fill, report_script

SHARED_SCRIPTS = ("dom", "format", "theme")  # of the report, before the page's own


def page(replay: RoutingReplay) -> str:
    """The page that shows ``replay``, as HTML."""
    return page_of(replay.to_json())


def page_of(view: dict[str, Any]) -> str:
    """The page of what ``Replay.to_json`` returned. Raises ConfigError if ``view`` is no such object."""
    try:
        best = min(view["courses"], key=lambda course: course["mean"])
        headline = f"Busiest GPU over the mean: {best['mean']:.3f} by {best['name']}."
        title = f"Replay of {view['trace']}"
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"this is no replay: {quoted(error)}", hint="give what moe replay --json wrote"
        ) from error
    return fill(
        title=title,
        headline=headline,
        view=as_script_text(view | {"version": __version__}),
        script=report_script(_asset("replay.js"), names=SHARED_SCRIPTS),
        style=_asset("replay.css"),
    )


def write_replay(replay: RoutingReplay, path: str | Path) -> None:
    """Write the page to ``path``, whole or not at all. Raises ConfigError if ``path`` cannot be written."""
    write_named(Path(path), page(replay), option="--html")


def _asset(name: str) -> str:
    return (resources.files("evenload.moe.replay") / "assets" / name).read_text(encoding="utf-8")
