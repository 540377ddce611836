"""The state of a run as the planner sees it: what is left, what each device holds, and when it is free."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from evenload.pipeline.dispatch.device_group import DeviceGroup
from evenload.pipeline.dispatch.fleet_state import DispatchView
from evenload.pipeline.dispatch.item_flow import ItemFlow, Strand
from evenload.pipeline.planning.estimates.speed_estimate import MeanTime, SpeedEstimate
from evenload.pipeline.planning.replan import RunState
from evenload.pipeline.problem import PlanDevice, Problem


def state_of_run(
    problem: Problem, view: DispatchView, flow: ItemFlow, seen: SpeedEstimate, now: float
) -> RunState:
    """``problem`` has all devices of the run; those that take no part any more are left out.

    What runs counts as done: its device is free when it is through with it.
    """
    n_tasks = [stage.n_tasks for stage in problem.stages]
    done = tasks_done(flow, n_tasks, problem.graph.needs, view.n_on_workers)
    devices = [_as_it_is(device, view, problem, seen, now) for device in problem.devices]
    return RunState(done, tuple(device for device in devices if device is not None), seen.item_s)


def tasks_done(
    flow: ItemFlow, n_tasks: Sequence[int], needs: Sequence[Sequence[int]], n_more: Sequence[int] = ()
) -> tuple[int, ...]:
    """Tasks of each stage that are done, or never will be.

    n_tasks  for each item, by stage; ``needs``: the stages that each takes from
    n_more   count as done, too
    """
    n_items, left = len(flow.items), tasks_left(flow, n_tasks)
    # There may be more parts than were expected.
    done = [max(0, n_items * n - n_left) for n, n_left in zip(n_tasks, left, strict=True)]
    done = [n + more for n, more in zip(done, n_more or [0] * len(done), strict=True)]
    for stage, taken in enumerate(needs):
        done[stage] = min([done[stage], *(done[need] * n_tasks[stage] // n_tasks[need] for need in taken)])
    return tuple(done)


def described(before: Problem, again: Problem, device: str) -> PlanDevice | None:
    """``device`` of the question asked ``again``, with its speed on the scale of ``before``.

    None if it is not in there, or nothing says how fast it is beside the others.
    """
    was = {one.id: one.speed for one in before.devices}
    new = next((one for one in again.devices if one.id == device), None)
    scales = [was[one.id] / one.speed for one in again.devices if one.id in was]
    return None if new is None or not scales else replace(new, speed=new.speed * scales[0])


def tasks_left(flow: ItemFlow, n_tasks: Sequence[int]) -> list[int]:
    """Tasks of each stage that are not done, if every item gets through. ``n_tasks``: for each item."""
    left = [0] * len(n_tasks)
    scopes = flow.graph.scopes
    for numbers in flow.strands_of:
        open_ones = [flow.strands[n] for n in numbers if flow.strands[n].fate == "open"]
        for stage, most in enumerate(n_tasks):
            if scopes[stage]:
                left[stage] += _parts_left(flow, open_ones, stage, most)
                continue
            n_here = sum(not strand.is_decided(stage) for strand in open_ones)
            is_whole = len(numbers) == 1  # its samples are made when it comes to their stage
            left[stage] += min(most, n_here * most if is_whole else n_here)
    return left


def _parts_left(flow: ItemFlow, wholes: Sequence[Strand], stage: int, most: int) -> int:
    """Parts of an item that have not been through ``stage``; ``most`` while it is not known how many."""
    scope, n_left = flow.graph.scopes[stage], 0
    for whole in wholes:
        if whole.is_decided(scope[0]):
            parts = [part for part in flow.parts_of(whole) if part.scope == scope]
            n_left += sum(part.fate == "open" and not part.is_decided(stage) for part in parts)
        else:
            n_left += most
    return n_left


def as_expanded(problem: Problem, flow: ItemFlow) -> Problem:
    """``problem`` with as many parts of an item as there are on average, where that is known."""
    scopes = flow.graph.scopes
    n_tasks: dict[tuple[int, ...], int] = {(): 1}
    for scope in sorted({scope for scope in scopes if scope}, key=len):
        outer = scope[:-1]
        was = [stage.n_tasks for stage, one in zip(problem.stages, scopes, strict=True) if one == scope]
        n_expanded = sum(scope[-1] in one.parts for one in flow.strands if one.scope == outer)
        n_parts = sum(part.scope == scope for part in flow.strands)
        # A multiple of the parts that it is part of.
        n_each = round(n_parts / n_expanded) if n_expanded else max(was) // n_tasks.get(outer, 1)
        n_tasks[scope] = n_tasks.get(outer, 1) * max(1, n_each)
    stages = [
        replace(stage, n_tasks=n_tasks[scope]) if scope else stage
        for stage, scope in zip(problem.stages, scopes, strict=True)
    ]
    return replace(problem, stages=tuple(stages)) if len(n_tasks) > 1 else problem


def timings_of(view: DispatchView, now: float) -> dict[tuple[str, str], MeanTime]:
    """Timings of groups of one device. What runs longer than anything before it says something already."""
    timings = {}
    for group in view.groups:
        for stage, name in enumerate(view.stages) if len(group.devices) == 1 else ():
            n, total_s = group.n_timed.get(stage, 0), group.total_s.get(stage, 0.0)
            running = [since for task, since in group.running.items() if task.stage == stage]
            late_s = (now - min(running)) / len(running) if running else 0.0
            if late_s > _expected_s(group, stage, view):
                n, total_s = n + 1, total_s + late_s
            if n:
                timings[group.devices[0], name] = MeanTime(n, total_s / n)
    return timings


def _expected_s(group: DeviceGroup, stage: int, view: DispatchView) -> float:
    """Seconds for an item there, or with the slowest of the others, if it has done none."""
    own = group.item_s.get(stage)
    others = (one.item_s[stage] for one in view.groups if stage in one.item_s)
    return own if own is not None else max(others, default=float("inf"))


def _as_it_is(
    device: PlanDevice, view: DispatchView, problem: Problem, seen: SpeedEstimate, now: float
) -> PlanDevice | None:
    mine = [group for group in view.groups if device.id in group.devices]
    complete = [group for group in mine if view.gone.isdisjoint(group.devices)]
    if device.id in view.gone or not all(group.is_usable for group in complete):
        return None
    speed = seen.speed.get(device.id, device.speed)
    group = next((group for group in mine if group.is_up), None)
    if group is None:
        return replace(device, speed=speed)
    held = [*group.resident, *([group.loading] if group.loading is not None else [])]
    ready_s = 0.0
    if group.loading is not None:
        load_s = problem.stages[group.loading].load_s
        ready_s = max(0.0, group.loading_since_s + load_s - now)
    elif group.running:
        ready_s = _busy_s(group, {n: s / speed for n, s in seen.item_s.items()}, problem, now)
    holds = tuple(problem.stages[stage].name for stage in held)
    returns = tuple((problem.stages[stage].name, seconds) for stage, seconds in group.parked.items())
    return replace(device, speed=speed, holds=holds, ready_s=ready_s, returns=returns)


def _busy_s(group: DeviceGroup, item_s: Mapping[str, float], problem: Problem, now: float) -> float:
    """Seconds until it is through with what it runs."""
    since = min(group.running.values())
    seconds = sum(item_s[problem.stages[task.stage].name] for task in group.running)
    return max(0.0, since + seconds - now)
