"""Where a run is at one moment, for those who plan, tell and show it; nothing here changes with the run."""

from collections.abc import Mapping
from dataclasses import dataclass

from evenload.pipeline.dispatch.device_group import DeviceGroup
from evenload.pipeline.dispatch.fleet_state import FleetState
from evenload.pipeline.dispatch.item_flow import StageTask

__all__ = ["DispatchView", "GroupView"]


@dataclass(frozen=True, slots=True)
class GroupView:
    """One group of devices. Stages are numbers; mappings by stage as in ``DeviceGroup``.

    held       stages that are loaded
    is_usable  it is not lost, and refuses no stage
    """

    id: str
    devices: tuple[str, ...]
    is_up: bool
    is_usable: bool
    held: tuple[int, ...]
    loading: int | None
    loading_since_s: float
    parked: Mapping[int, float]
    running: Mapping[StageTask, float]
    item_s: Mapping[int, float]
    n_timed: Mapping[int, int]
    total_s: Mapping[int, float]
    n_taken: Mapping[int, int]
    barred: frozenset[int]

    @classmethod
    def of(cls, group: DeviceGroup) -> "GroupView":
        return cls(
            group.id,
            group.devices,
            group.state == "up",
            group.state != "lost" and not group.refused,
            tuple(group.resident),
            group.loading,
            group.loading_since_s,
            dict(group.parked),
            dict(group.running),
            dict(group.item_s),
            dict(group.n_timed),
            dict(group.total_s),
            dict(group.n_taken),
            group.barred,
        )


@dataclass(frozen=True, slots=True)
class DispatchView:
    """All groups, and of each stage, by its number: tasks that wait, and that workers have.

    over     stages of which nothing is left, nor will come
    gone     devices that take no part any more: they were drained, or left
    """

    stages: tuple[str, ...]
    groups: tuple[GroupView, ...]
    n_waiting: tuple[int, ...]
    n_on_workers: tuple[int, ...]
    over: frozenset[int]
    gone: frozenset[str]

    @classmethod
    def of(cls, state: FleetState, gone: set[str]) -> "DispatchView":
        numbers = range(len(state.stages))
        return cls(
            state.stages,
            tuple(map(GroupView.of, state.groups.values())),
            tuple(map(state.waiting.count, numbers)),
            tuple(map(state.tasks_on, numbers)),
            frozenset(filter(state.is_over, numbers)),
            frozenset(gone),
        )
