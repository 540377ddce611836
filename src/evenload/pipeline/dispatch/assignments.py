"""From a plan to what each group is to do, and what it may do beside."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from evenload.pipeline.dispatch.device_group import Assignment, DeviceGroup
from evenload.pipeline.plan import Phase
from evenload.pipeline.stage_graph import StageGraph


def add_help(groups: Mapping[str, DeviceGroup], free: Mapping[str, int], turn: int) -> None:
    """Let groups of one device help with stages planned on others of one device, if the model fits.

    free  device -> bytes that it may use, where that is known
    turn  the phase that this counts as: behind all of the plan; what is kept beside it has its own
    """
    alone = [group for group in groups.values() if len(group.devices) == 1]
    first: dict[int, Assignment] = {}
    for group in alone:
        for assignment in group.assignments:
            first.setdefault(assignment.stage, assignment)
    at_work = [group for group in groups.values() if any(one.phase < turn for one in group.assignments)]
    planned = {device for group in at_work for device in group.devices}
    for group in alone:
        if not group.assignments and planned.intersection(group.devices):
            continue  # its device is meant to work in another group
        has, room = {assignment.stage for assignment in group.assignments}, free.get(group.devices[0])
        for stage, one in first.items():
            fit, phase = one.fit, max(turn, one.phase)
            needed = fit.device2bytes[0] if fit.device2bytes else 0
            if stage not in has | group.barred and (room is None or needed <= room):
                group.assignments.append(
                    Assignment(phase, stage, group.lowered.get(stage, fit), is_help=True)
                )


def keep_unplanned(
    groups: Mapping[str, DeviceGroup], before: Mapping[str, Sequence[Assignment]], turn: int
) -> None:
    """Let groups keep what they had of stages that a new plan leaves out, as help; others may help with it.

    A plan counts what runs as done: it has no place for the last tasks of a stage, which come back if their
    worker ends.

    before  what each group was to do
    turn    the first phase that this counts as: each stage has its own, so that no models are held together
    """
    planned = {assignment.stage for group in groups.values() for assignment in group.assignments}
    for name, assignments in before.items():
        left_out = {assignment.stage: assignment for assignment in assignments}
        for stage in left_out.keys() - planned:
            kept = replace(left_out[stage], phase=turn + stage, limit=None, is_help=True)
            groups[name].assignments.append(kept)


def streaming_stages(phase: Phase, stages: Sequence[str], graph: StageGraph) -> Iterator[int]:
    """Stages of ``phase`` whose results are taken by other groups: their number in wait is bounded."""
    holders = {name: {unit.devices for unit in phase.units if unit.stage == name} for name in phase.stages}
    for name in phase.stages:
        number = stages.index(name)
        after = [holders.get(stages[later]) for later in graph.next[number]]
        if any(taking and holders[name] - taking for taking in after):
            yield number
