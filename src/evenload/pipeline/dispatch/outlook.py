"""What a dispatcher can say of its run: what is left, what will come, who would be quicker."""

import heapq
from collections.abc import Mapping, Sequence

from evenload.pipeline.dispatch.actions import Group, Post
from evenload.pipeline.dispatch.item_flow import Task
from evenload.pipeline.dispatch.waiting import Waiting

__all__ = ["Outlook"]

FEW = 4  # ready tasks for each other group: more, and nobody holds back


class Outlook:
    """``groups`` by name and the tasks that are ``waiting``; what is asked here changes neither."""

    def __init__(
        self,
        stages: Sequence[str],
        item_s: Mapping[int, float],
        load_s: Mapping[int, float],
        batch: Mapping[int, int],
    ):
        self.stages = tuple(stages)
        self.groups: dict[str, Group] = {}
        self.waiting = Waiting(len(stages))
        self._n_phases = 0
        self._item_s, self._load_s = dict(item_s), dict(load_s)
        self._batch = dict(batch)

    @property
    def n_running(self) -> int:
        """Tasks that a worker has; their results are not known yet."""
        return sum(len(group.running) + len(group.saving) for group in self.groups.values())

    def tasks_on(self, stage: int) -> int:
        """How many of these a worker has."""
        tasks = (task for group in self.groups.values() for task in (*group.running, *group.saving))
        return sum(task.stage == stage for task in tasks)

    def is_over(self, stage: int) -> bool:
        """Is nothing left of it, and will nothing come?"""
        return not self.waiting.count(stage) and not self.tasks_on(stage) and not self._is_fed(stage)

    def batch_of(self, group_id: str, stage: int) -> int:
        """Most items in one call there."""
        return self.groups[group_id].batch.get(stage, self._batch.get(stage, 1))

    def _turn(self, post: Post, group: Group) -> int:
        """When it is the turn of ``post``: in its phase; beyond its limit, after all phases."""
        is_beyond = post.limit is not None and group.n_taken.get(post.stage, 0) >= post.limit
        return post.phase + (self._n_phases if is_beyond else 0)

    def _is_worth_loading(self, group: Group, stage: int) -> bool:
        """Is there more work of ``stage`` than those who have it will do while ``group`` loads it?"""
        holders = [g for g in self.groups.values() if g is not group and stage in g.resident]
        known = [g.item_s[stage] for g in holders if stage in g.item_s]
        item_s = sum(known) / len(known) if known else self._item_s.get(stage)
        if not holders or item_s is None:
            return True
        without_s = self.waiting.count(stage) * item_s / len(holders)
        load_s = group.parked.get(stage, self._load_s.get(stage, 0.0))
        return without_s > load_s + group.item_s.get(stage, item_s)

    def _n_next(self, stage: int) -> int:
        """Tasks of the stage after ``stage`` that wait, or soon will."""
        return self.waiting.count(stage + 1) + self.tasks_on(stage)

    def _holders(self, group: Group, stage: int) -> list[Group]:
        """Others who have the model."""
        others = [g for g in self.groups.values() if g is not group and g.state == "up" and not g.is_draining]
        return [g for g in others if stage in g.resident and stage not in g.refused]

    def _waits_for_its_own(self, group: Group) -> bool:
        """It has, or could load, the model of a post of the plan whose tasks are on their way."""
        mine = [post for post in group.posts if not post.is_help and post.stage not in group.refused]
        return any(self._turn(post, group) < self._n_phases and self._is_fed(post.stage) for post in mine)

    def _is_planned_elsewhere(self, group: Group, stage: int) -> bool:
        """Another that can is meant to do it. One task that may not run there is reason enough to help."""
        return not self.waiting.avoid and any(
            post.stage == stage and not post.is_help
            for other in self.groups.values()
            if other is not group and other.state != "lost" and not other.is_draining
            if stage not in other.refused
            for post in other.posts
        )

    def _is_too_slow(self, group: Group, stage: int, holders: list[Group], now: float) -> bool:
        """Would the others be done with all that is ready before ``group`` was done with one of it?"""
        mine_s, n_ready = group.item_s.get(stage), self.waiting.count(stage)
        others = [g for g in holders if g.item_s.get(stage)]
        if mine_s is None or not others or n_ready > FEW * len(others) or self._is_fed(stage):
            return False
        ends = [(g.free_s(stage, now) + g.item_s[stage], g.item_s[stage]) for g in others]
        heapq.heapify(ends)
        last = now
        for _ in range(n_ready):
            last, seconds = heapq.heappop(ends)
            heapq.heappush(ends, (last + seconds, seconds))
        return now + mine_s > last

    def _is_coming(self, stage: int) -> bool:
        """Are there tasks of ``stage``, or will there be soon: is the stage before it under way?"""
        return bool(self.waiting.count(stage)) or (stage > 0 and self.tasks_on(stage - 1) > 0)

    def _is_fed(self, stage: int) -> bool:
        """May more tasks of ``stage`` come?"""
        return any(self.waiting.count(before) or self.tasks_on(before) for before in range(stage))

    def _could_run(self, group: Group, task: Task) -> bool:
        has_post = any(post.stage == task.stage for post in group.posts)
        is_there = group.state != "lost" and not group.is_draining and task.stage not in group.refused
        return has_post and is_there and group.id not in self.waiting.avoid.get(task, ())

    def why_stuck(self) -> tuple[int, dict[str, str]] | None:
        """A stage that has tasks which nobody can run, and why not, by device; None if there is none."""
        for stage in range(len(self.stages)):
            tasks = self.waiting.of(stage)
            if tasks and not any(self._could_run(g, t) for g in self.groups.values() for t in tasks):
                causes = {}
                for group in self.groups.values():
                    if any(post.stage == stage for post in group.posts):
                        drained = "it was drained" if group.is_draining else "no memory for it"
                        causes[group.id] = group.refused.get(stage) or group.why_lost or drained
                return stage, causes
        return None
