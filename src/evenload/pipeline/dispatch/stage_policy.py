"""What a policy says of a stage: how much a free group takes, what it leaves, and which task it copies. Pure.

A policy sees a stage as it sees a map: groups are its devices, and what one runs and has ahead is a chunk.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from evenload.balance.partition import split
from evenload.balance.policy import Ask, Copy, Hold, Measured, Policy, Static, Take, policy_from_name
from evenload.balance.policy.base import checked
from evenload.balance.policy.device_state import DeviceState
from evenload.balance.policy.estimate import Cost, CostEstimate
from evenload.balance.policy.in_flight import ChunkInFlight
from evenload.pipeline.dispatch.device_group import DeviceGroup

LAUNCH_S = 0.005  # of an order and its answer: what is late by a few of these is not worth a copy


class StagePolicy:
    """A policy with its state of each stage.

    policy  the policy, or its name
    speeds  device -> relative speed, by which ``Static`` shares out; 1 for others
    """

    def __init__(self, policy: Policy | str, speeds: Mapping[str, float]):
        self._policy, self._speeds = policy_from_name(policy), speeds
        self._states: dict[int, Any] = {}

    @property
    def is_measured(self) -> bool:
        """Whether slow groups leave the last tasks to others, by what was measured."""
        return isinstance(self._policy, Measured)

    def n_left_of_share(self, group: DeviceGroup, all_: Sequence[DeviceGroup], stage: int, n: int) -> int:
        """How many of ``n`` tasks that wait are for ``group``; ``all_``: who shares the stage, it included.

        Shares are of all tasks so far, so that they grow as tasks come.
        """
        if not isinstance(self._policy, Static):
            return n
        assert isinstance(self._policy.partition, str), "a policy with counts has no name"
        # Less than none was taken if what came back had been taken in an earlier plan.
        taken = [max(0, one.n_taken.get(stage, 0)) for one in all_]
        speeds = [sum(self._speeds.get(device, 1.0) for device in one.devices) for one in all_]
        at = all_.index(group)
        return max(0, split(self._policy.partition, n + sum(taken), speeds)[at] - taken[at])

    def n_to_take(
        self, group: DeviceGroup, all_: Sequence[DeviceGroup], stage: int, n: int, now: float, *, is_all: bool
    ) -> int:
        """How many of ``n`` tasks that wait ``group`` takes at once. ``is_all``: no more will come."""
        devices = {one.id: as_device(one, stage) for one in all_}
        for one in all_:
            n_given, began_s = len(one.running) + one.n_unbegun, min(one.running.values(), default=now)
            if n_given:
                chunk = ChunkInFlight(0, one.id, range(n_given), n_given, began_s, n_given)
                devices[one.id].chunks[0] = chunk
        n_mine, n_left = self.n_left_of_share(group, all_, stage, n), n if is_all else None
        answer = self.step(
            Ask(devices[group.id], [*devices.values()], now, n_mine, n_left, n_left, may_repeat=False), stage
        )
        return answer.n if isinstance(answer, Take) else 1

    def step(self, ask: Ask, stage: int) -> Take | Copy | Hold:
        """What the policy answers, in its state of ``stage``."""
        state = self._states.get(stage, self._policy.init())
        self._states[stage], answer = checked(self._policy.step(state, ask), self._policy, ask)
        return answer


def as_device(group: DeviceGroup, stage: int, load_s: float = 0.0) -> DeviceState:
    """What a policy should know of ``group``, as a device for items of ``stage``."""
    item_s = group.item_s.get(stage)
    estimate = CostEstimate(None if item_s is None else Cost(load_s + LAUNCH_S, max(item_s, 1e-12)))
    return DeviceState(group.id, estimate=estimate, is_up=True)
