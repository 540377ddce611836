"""What ``evenload clients run`` prints in the end: rounds, strategy, privacy, clients that failed."""

from typing import TYPE_CHECKING, Any

import click

from evenload.cli.clients.job_parts import JobParts
from evenload.cli.terminal.table import format_table
from evenload.events import json_text

if TYPE_CHECKING:
    from evenload.clients import FederatedResult

__all__ = ["TrainingReport"]

MOST_FAILED = 5  # that are listed


class TrainingReport:
    """The end of a training: its rounds, the clients that failed by round, and the privacy that it spent."""

    def __init__(self, result: "FederatedResult", parts: JobParts):
        self._result = result
        self.failed = {
            f"round {one.round + 1}, client {client}": why
            for one in result.history
            for client, why in one.failed.items()
        }
        self._privacy = _privacy(parts.job, len(parts.datasets), len(result.history))

    def print(self, as_json: bool) -> None:
        """Print a table, or one JSON object; and the failures on stderr."""
        click.echo(json_text(self._page()) if as_json else "\n".join(self._lines()))
        for where, why in list(self.failed.items())[:MOST_FAILED]:
            click.echo(f"{where} failed: {why}", err=True)
        if len(self.failed) > MOST_FAILED:
            click.echo(f"and {len(self.failed) - MOST_FAILED} more", err=True)

    def _page(self) -> dict[str, Any]:
        history, plan = self._result.history, self._result.plan
        rounds = [
            {
                "round": one.round,
                "cohort": len(one.cohort),
                "returned": len(one.returned),
                "loss": one.loss,
                **one.test,
            }
            for one in history
        ]
        return {
            "schema": 1,
            "rounds": rounds,
            "strategy": str(plan.strategy) if plan else None,
            "lost": sum(len(one.cohort) - len(one.returned) - len(one.failed) for one in history),
            "failed": self.failed,
            **self._privacy,
        }

    def _lines(self) -> list[str]:
        history, plan = self._result.history, self._result.plan
        rows = [
            [
                str(one.round + 1),
                str(len(one.returned)),
                f"{one.loss:.4f}",
                *(f"{value:.4f}" for value in one.test.values()),
            ]
            for one in history
        ]
        head = ["round", "clients", "loss", *(f"test {name}" for name in history[-1].test)]
        lines = format_table(head, rows, right=head[:3])
        if plan is not None:
            lines.append(plan.explain())
        if self._privacy:
            epsilon, delta = self._privacy["epsilon"], self._privacy["delta"]
            lines.append(f"privacy: epsilon {epsilon:.3g} at delta {delta:.2g}, per client")
        return lines


def _privacy(asked: Any, n_clients: int, n_rounds: int) -> dict[str, float]:
    """What a private run has spent, if its cohorts allow to compute it; delta is 1 / clients^1.1."""
    from evenload._optional import is_installed
    from evenload.clients.algorithms import PrivateFedAvg

    is_private = isinstance(asked.algorithm, PrivateFedAvg)
    is_known = is_private and asked.cohort.poisson and asked.algorithm.expected is not None
    if not is_known or not is_installed("dp_accounting"):
        return {}
    from evenload.clients.accountant import spent_epsilon

    delta = n_clients**-1.1 if n_clients > 1 else 0.5
    return {
        "epsilon": spent_epsilon(asked.algorithm.noise, asked.cohort.size, n_rounds, delta),
        "delta": delta,
    }
