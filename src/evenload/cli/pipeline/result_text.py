"""What ``evenload run`` and ``evenload retry`` print of a finished run."""

from typing import TYPE_CHECKING

import click

from evenload.errors import printable
from evenload.events import json_text

if TYPE_CHECKING:
    from evenload.pipeline.dispatch.results import PipelineResult

MOST_SHOWN = 10


def echo_result(result: "PipelineResult", as_json: bool) -> None:
    """Print the result as text or as one JSON object; faults of the run as warnings on stderr."""
    for fault in result.faults:
        click.echo(f"warning: {fault}", err=True)
    click.echo(json_text(result.to_json(), indent=2) if as_json else _text(result))


def _text(result: "PipelineResult") -> str:
    """The result for a terminal: failures, figures, and where everything is."""
    lines = [
        f"{name}: {failure.error.type}: {_first_line(failure.error.message)}{place}"
        for failure in result.failures[:MOST_SHOWN]
        if failure.error
        for name in [f"failed {failure.id} in {failure.error.stage}"]
        for place in [f" ({printable(failure.error.place)})" if failure.error.place else ""]
    ]
    if len(result.failures) > MOST_SHOWN:
        lines.append(f"... and {len(result.failures) - MOST_SHOWN} more failures, see results.jsonl")
    hints = (_hint(failure.error.message) for failure in result.failures[:MOST_SHOWN] if failure.error)
    lines += [f"  hint: {hint}" for hint in dict.fromkeys(hints) if hint]
    lines.append(result.summary.headline())
    if result.status in ("interrupted", "failed", "timed out"):
        lines.append(f"{result.status}: {result.item_counts['unfinished']} items are unfinished")
    width = max((len(name) for name in result.headline), default=0)
    lines += [f"  {name:<{width}}  {figure}" for name, figure in result.headline.items()]
    lines.append(f"results  {result.folder / 'results.jsonl'}")
    if result.report is not None:
        lines.append(f"report   {result.report}")
    if result.upload is not None and not result.upload["n_left"]:
        lines.append(f"copies   {result.upload['to']} ({result.upload['n_files']} files)")
    return "\n".join(lines).encode("utf-8", "backslashreplace").decode()


def _hint(text: str) -> str:
    """Return what an error says is to be done, in its last line; "" if it says nothing."""
    last = text.strip().splitlines()[-1:]
    return last[0].strip().removeprefix("hint: ") if last and last[0].strip().startswith("hint: ") else ""


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else ""
