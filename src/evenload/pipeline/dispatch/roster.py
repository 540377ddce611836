"""Devices that come and go, and what that means for the groups that they are in."""

from collections.abc import Collection, Mapping

from evenload.pipeline.dispatch.device_group import DeviceGroup


class GroupRoster:
    """The devices of a run by what became of them; it makes their groups, and changes those.

    groups   by name, as the dispatcher knows them
    barred   device -> stages that may not run on it
    drained  devices that are to take nothing more
    left     devices that are gone -> why: no group that has one works, however it was made
    """

    def __init__(self, groups: dict[str, DeviceGroup], barred: Mapping[str, Collection[int]]):
        self._groups, self._barred = groups, dict(barred)
        self.drained: set[str] = set()
        self.left: dict[str, str] = {}

    def group(self, devices: tuple[str, ...]) -> DeviceGroup:
        """Return the group of ``devices``, a new one if there was none."""
        name = "+".join(devices)
        if name not in self._groups:
            barred = frozenset[int]().union(*(self._barred.get(one, ()) for one in devices))
            self._groups[name] = group = DeviceGroup(name, devices, barred=barred)
            self._look_at(group)
        return self._groups[name]

    def leave(self, device: str, why: str) -> None:
        """``device`` is there no more, until it joins."""
        self.left[device] = why
        self._look_at(*self._of(device))

    def drain(self, device: str) -> None:
        """``device`` is to take nothing more; what it runs may be finished."""
        self.drained.add(device)
        self._look_at(*self._of(device))

    def join(self, device: str, barred: Collection[int]) -> bool:
        """``device`` comes back, or is new: then it has a group, and this returns True."""
        self.drained.discard(device)
        self.left.pop(device, None)
        known = self._of(device)
        for group in known:
            if group.state == "lost":
                group.state = "off"
                group.back_off.forgive()
        self._look_at(*known)
        if not known:
            self._barred[device] = barred
            self.group((device,))
        return not known

    def lost(self) -> set[str]:
        """Devices that left, and those of groups whose workers died again and again."""
        lost = [group.devices for group in self._groups.values() if group.state == "lost"]
        died = [devices for devices in lost if self.left.keys().isdisjoint(devices)]
        return set(self.left).union(*died)

    def _of(self, device: str) -> list[DeviceGroup]:
        return [group for group in self._groups.values() if device in group.devices]

    def _look_at(self, *groups: DeviceGroup) -> None:
        for group in groups:
            group.is_draining = not self.drained.isdisjoint(group.devices)
            gone = [device for device in group.devices if device in self.left]
            if gone:
                group.state, group.back_off.why_given_up = "lost", self.left[gone[0]]
