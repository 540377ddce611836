"""A job whose models stay in the workers from one run to the next: planned once, for all models at a time."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenload.errors import ConfigError
from evenload.events import json_text
from evenload.pipeline.pipeline import Pipeline

if TYPE_CHECKING:
    from evenload.pipeline.dispatch.item_flow import ItemFlow
    from evenload.pipeline.job.spec import JobSpec
    from evenload.pipeline.planning.planner import Watch
    from evenload.pipeline.reuse.decision import StageReuse
    from evenload.pipeline.run.machines.fleet import RunFleet
    from evenload.pipeline.stage import Item
    from evenload.pipeline.store.kept_results import ReuseSettings
    from evenload.pipeline.store.run_folder import RunFolder


class ResidentJob(Pipeline):
    """A job whose models stay in the workers from one run to the next.

    ``plans`` is filled by the first run on a pool of devices and read by the others: in those the memory
    that is free no longer says what fits, because the models are there already. ``is_kept``: its results
    are there for a later run; else nobody asks what made them.
    """

    def __init__(
        self,
        spec: "JobSpec",
        items: "list[tuple[Item, dict[str, Any]]]",
        folder: Path,
        plans: dict[Any, Any],
        *,
        is_kept: bool = True,
    ):
        self._hold(spec, items, folder)
        self._plans, self._is_kept = plans, is_kept

    def _reusing(
        self, cache: str | Path | None, fresh: Iterable[str] = (), retry_failed: bool = False
    ) -> "AbstractContextManager[ReuseSettings]":
        if self._is_kept:
            return super()._reusing(cache, fresh, retry_failed)
        from evenload.pipeline.store.kept_results import no_reuse

        return no_reuse(self.spec, self.folder)  # weights need not be read to be known again

    def _planned(
        self,
        fleet: "RunFleet",
        folder: "RunFolder",
        watch: "Watch | None",
        flow: "ItemFlow | None",
        reuse: "Sequence[StageReuse]",
    ) -> Any:
        """Plan all stages for all items, whatever is there of them: the models stay for later runs."""
        devices = tuple(device.id for device in fleet.pool)
        if devices not in self._plans:
            self._plans[devices] = self._first_plan(fleet, folder, reuse)
        found = self._plans[devices]
        if found.job_problem.problem.n_items != len(self.items):
            found = self._again(found)
        folder.write_text("plan.json", json_text(found.plan.to_json(), indent=2) + "\n")
        return found

    def _again(self, found: Any) -> Any:
        """The plan for another number of items: who has which model stays, who does how many may not."""
        from evenload.pipeline.planning.job_plan import plan_job

        asked = replace(
            found.job_problem, problem=replace(found.job_problem.problem, n_items=len(self.items))
        )
        same = self.spec.schedule.model_copy(update={"mode": found.plan.mode})
        return found._replace(
            plan=plan_job(self.spec.model_copy(update={"schedule": same}), asked), job_problem=asked
        )

    def _first_plan(self, fleet: "RunFleet", folder: "RunFolder", reuse: "Sequence[StageReuse]") -> Any:
        """All models on each device where they fit whole, so that nothing is loaded twice."""
        asked = self.spec
        if asked.schedule.mode == "auto":
            every = asked.schedule.model_copy(update={"mode": "data_parallel"})
            self.spec = asked.model_copy(update={"schedule": every})
            try:
                found = super()._planned(fleet, folder, None, None, reuse)
                units = [unit for phase in found.plan.phases for unit in phase.units]
                if all(unit.fit.name == "whole" for unit in units):
                    return found
            except ConfigError:
                pass  # they do not fit together
            finally:
                self.spec = asked
        return super()._planned(fleet, folder, None, None, reuse)
