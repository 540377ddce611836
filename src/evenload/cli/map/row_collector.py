"""Writes a row for every result of a map, collects the failures, and says in the end how it went."""

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from evenload.cli.terminal.item_files import RowWriter, row_json, row_of
from evenload.errors import ResultNotSendable

if TYPE_CHECKING:
    from evenload.executor import Results, Summary

__all__ = ["RowCollector"]

MOST_LISTED = 10


class RowCollector:
    """The rows of one map: written as results come, with the failures collected for the end.

    results  what the executor returns, as it comes
    out      the file for the rows; None: standard output
    as_json  print one JSON object at the end, with the rows in it if there is no ``out``
    """

    def __init__(self, results: "Results", out: Path | None, as_json: bool):
        self.failures: list[dict[str, Any]] = []
        self.is_interrupted = False
        self._results = results
        self._out = out
        self._as_json = as_json
        self._rows: list[dict[str, Any]] = []

    def write_all(self, stops_on_error: bool) -> None:
        """Write a row for every result. What is finished is written first, whatever happens."""
        writer = RowWriter(self._out, is_mute=self._as_json)
        try:
            for block in self._results.blocks():
                for index, value in zip(block.items, block.values, strict=True):
                    writer.write(self._line(index, value))
                writer.flush()
                if stops_on_error and self.failures:
                    self._results.stop()
        except KeyboardInterrupt:
            self.is_interrupted = True
        finally:
            self._results.close()
            writer.close()

    def _line(self, index: int, value: Any) -> str:
        """The row of a result as a line of JSON; a failure is also kept for the end."""
        try:
            row, line = row_of(index, value)
        except (TypeError, ValueError) as error:
            row, line = row_of(
                index, ResultNotSendable(f"the result cannot be written: {error}", index=index)
            )
        if "error" in row:
            self.failures.append(row)
        if self._as_json and self._out is None:
            self._rows.append(json.loads(line))
        return line

    @contextmanager
    def interruptible(self, quiet: bool) -> Iterator[None]:
        """On the first Ctrl-C or SIGTERM begin nothing new and keep what is finished; on the second end."""

        def on_interrupt(signum: int, frame: FrameType | None) -> None:
            if self.is_interrupted:
                raise KeyboardInterrupt
            self.is_interrupted = True
            self._results.stop()
            if not quiet:
                click.echo("finishing what runs; press Ctrl-C again to stop now", err=True)

        numbers = (signal.SIGINT, signal.SIGTERM)
        previous = {number: signal.signal(number, on_interrupt) for number in numbers}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    @property
    def status(self) -> str:
        return "interrupted" if self.is_interrupted else "failures" if self.failures else "done"

    @property
    def exit_code(self) -> int:
        return {"interrupted": 130, "failures": 1, "done": 0}[self.status]

    def report(self, quiet: bool) -> None:
        """Print the JSON object on stdout if it was asked for; failures and the headline on stderr."""
        summary = self._results.summary
        for row in self.failures[:MOST_LISTED]:
            error = row["error"]
            first = error["message"].splitlines()[0] if error["message"] else ""
            click.echo(f"failed: item {row['index']}: {error['type']}: {first}", err=True)
        if len(self.failures) > MOST_LISTED:
            click.echo(f"... and {len(self.failures) - MOST_LISTED} more failures", err=True)
        if not quiet and summary is not None:
            click.echo(f"{'interrupted: ' if self.is_interrupted else ''}{summary}", err=True)
        if self._as_json:
            click.echo(row_json(self._page(summary), sys.stdout.encoding))

    def _page(self, summary: "Summary | None") -> dict[str, Any]:
        page: dict[str, Any] = {"schema": 1, "status": self.status, "failed": self.failures}
        page |= {"out": str(self._out)} if self._out else {"rows": self._rows}
        return page | {"summary": None if summary is None else summary.to_json()}
