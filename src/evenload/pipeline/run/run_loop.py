"""The loop of a run: attend to requests, let devices work, keep what came of it, go on from there.

flow (who needs what) ──► driver (who runs it) ──► ledger (on disk) ──► flow, events
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from evenload.errors import EvenloadError
from evenload.executor.loop.control import Control
from evenload.pipeline.run.result_recorder import ResultRecorder
from evenload.pipeline.run.run_parts import RunContext, RunParts
from evenload.pipeline.store.group_commit import StageResult


class RunLoop:
    """The loop of one run.

    is_time_up  says whether the run may go on no longer
    check       raises what is to end it now, if anything
    has_failed  it was stopped because of failures, and deals nothing more
    is_late     it was ended because its time was up
    """

    def __init__(
        self,
        context: RunContext,
        parts: RunParts,
        recorder: ResultRecorder,
        is_time_up: Callable[[], bool] = lambda: False,
        check: Callable[[], None] = lambda: None,
    ):
        self.has_failed = self.is_late = False
        self._is_time_up, self._check = is_time_up, check
        self._context, self._parts, self._recorder = context, parts, recorder

    def go(self) -> None:
        """Until nothing is left, or what is left need not be done. Raises what ends the run for all items.

        KeyboardInterrupt if another program has asked to stop.
        """
        try:
            self._parts.machines.begin()
            changes = self._parts.changes
            with Control(self._context.run_folder.path, changes), contextlib.closing(changes):
                while self._is_going_on() or self._parts.commit.pending:
                    self._round()
                    self.is_late = self._is_time_up() and self._is_going_on()
                    if self.is_late:
                        break
        finally:
            self._close()

    def _round(self) -> None:
        parts, recorder = self._parts, self._recorder
        self._check()
        parts.changes.attend()
        if parts.changes.is_stopped:
            raise KeyboardInterrupt
        ended = parts.driver.step(
            deals=not (self.has_failed or parts.changes.is_paused),
            seeks_plan=lambda why: parts.replanner is not None and parts.replanner.seeks(why),
        )
        parts.queues.look()
        parts.counts.look()
        results, fault = recorder.results_of(ended)
        parts.commit.put(results)
        parts.dispatcher.go_on(recorder.advance(results))
        parts.commit.put(recorder.take_adopted())
        self.has_failed = self.has_failed or self._must_stop(results)
        recorder.tell(parts.commit.taken())
        if fault is not None:
            raise fault
        if parts.replanner is not None and not self.has_failed:
            parts.replanner.look()

    def _is_going_on(self) -> bool:
        """Is anything to be done, or being done?"""
        return bool(self._context.flow.n_open) and (not self.has_failed or self._parts.driver.is_busy)

    def _must_stop(self, results: Sequence[StageResult]) -> bool:
        rule, flow = self._context.spec.errors, self._context.flow
        failed = (result.task.stage for result in results if result.kept.error is not None)
        refused = (why for strand, _ in flow.refused for why in strand.errors)
        has_error = not all(map(flow.excuses, (*failed, *refused)))
        return has_error and (
            rule.on_error == "stop" or flow.n_failed > rule.max_error_rate * len(flow.items)
        )

    def _close(self) -> None:
        try:
            self._parts.driver.close()
        finally:  # whatever ends the waiting: nothing is claimed that is not in the journal
            self._settle()
        self._parts.queues.tell()
        self._parts.inputs.close()
        with contextlib.suppress(OSError):
            (self._context.run_folder.path / "control").rmdir()

    def _settle(self) -> None:
        """The journal has what it can have; the rest was not done."""
        commit, recorder = self._parts.commit, self._recorder
        commit.close()
        try:
            with contextlib.suppress(EvenloadError):  # there is an error already
                recorder.tell(commit.taken())
        finally:
            recorder.disown(commit.pending)

    def measured(self) -> dict[str, Any]:
        """What the plan can be compared with."""
        found: dict[str, Any] = self._parts.driver.outcomes.measured()
        if self._parts.replanner is not None:
            found["replans"] = self._parts.replanner.made
        return found
