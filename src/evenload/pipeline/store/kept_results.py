"""Look up what is there already of a job: in its run folder, and in the cache that folders share.

reuse_settings ──► KeptResults.find(task) ──► a result that is what would be computed now, or None
               └─► preview_reuse ──► how much there is of each stage, beforehand
"""

import contextlib
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenload._user_folders import user_cache
from evenload.errors import ConfigError, UnknownName
from evenload.pipeline.dispatch.item_flow import ItemFlow, StageRule, StageTask
from evenload.pipeline.job.spec_stage import sampled_stages
from evenload.pipeline.reuse.content_digests import ContentDigests
from evenload.pipeline.reuse.decision import StageReuse, why_not_kept
from evenload.pipeline.reuse.read_digests import ALL_READS, JobFacts, TaskValues, digest_reads
from evenload.pipeline.reuse.stage_identity import StageIdentity, identify_stage
from evenload.pipeline.stage import Item
from evenload.pipeline.store.ledger import FOLDER, LedgerEntry
from evenload.pipeline.store.result_cache import DEFAULT_LIMIT_BYTES, ResultCache, link_file
from evenload.pipeline.store.run_folder import RunFolder
from evenload.settings import resolve

if TYPE_CHECKING:
    from evenload.pipeline.job.spec import JobSpec

_WORTH_SAYING_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class ReuseSettings:
    """The sources that a run may take results from.

    identities      of its stages, in order
    cache           results that run folders share; None: only those of its own
    fresh           stages that are done again
    retries_failed  items that failed are tried again
    notes           sentences for the user
    """

    job: JobFacts
    identities: Sequence[StageIdentity]
    digests: ContentDigests
    cache: ResultCache | None = None
    fresh: frozenset[str] = frozenset()
    retries_failed: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FoundResult:
    """A result that is there. ``is_new``: the run folder's ledger does not have it yet."""

    entry: LedgerEntry
    is_new: bool = False


@dataclass(slots=True)
class KeptResults:
    """The results that a run need not compute.

    folder  None if there is none yet
    notes   files that were found damaged and will be made again, one sentence each
    reuse   how much of each stage was there, in order
    """

    spec: "JobSpec"
    flow: ItemFlow
    settings: ReuseSettings
    folder: RunFolder | None
    is_dry: bool = False
    notes: list[str] = field(default_factory=list)
    reuse: list[StageReuse] = field(init=False)
    _sampled: set[int] = field(init=False)
    _was: dict[str, Mapping[str, str] | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.reuse = [StageReuse(stage.name) for stage in self.spec.stages]
        self._sampled = sampled_stages(self.spec.stages)
        self._was = {one.digest: one.facts for one in self.settings.identities}

    @property
    def has_any(self) -> bool:
        """Whether there is anything to look through."""
        return self.settings.cache is not None or (
            self.folder is not None and not self.folder.ledger.is_empty
        )

    def find(self, task: StageTask) -> FoundResult | None:
        """Return the result of a task that is what would be computed now; None if it is to be done."""
        reuse, cache = self.reuse[task.stage], self.settings.cache
        if self.spec.stages[task.stage].name in self.settings.fresh:
            why = "it is asked for"
            if cache is not None and not self.is_dry and (cached := self._cached(task, cache)) is not None:
                cache.drop(cached)
        else:
            found, why = self._in_ledger(task)
            if found is None and cache is not None:
                found = self._in_cache(task, cache)
            if found is not None:
                reuse.n_kept += 1
                return found
        reuse.n_todo += 1
        reuse.why[why] += 1
        return None

    def reads_of(self, task: StageTask, names: Sequence[str] | None) -> dict[str, str] | None:
        """Return digests of what a task has read (None: nobody knows what, so of all that it was given).

        None if they cannot be compared with another run's.
        """
        strand, made = self.flow.strands[task.strand], self.flow.made_before(task)
        values = TaskValues(strand.item, self.flow.inputs[strand.at], made.outputs, made.files)
        job, digests = self.settings.job, self.settings.digests
        return digest_reads(ALL_READS if names is None else names, values, job, digests)

    # --- inside -----------------------------------------------------------------------------------

    def _in_ledger(self, task: StageTask) -> tuple[FoundResult | None, str]:
        name, strand = self.spec.stages[task.stage].name, self.flow.strands[task.strand]
        entry = self.folder.ledger.find(name, strand) if self.folder is not None else None
        if entry is None or self.folder is None:
            return None, ""
        self.reuse[task.stage].timed(entry.seconds if entry.error is None else 0.0)
        identity = self.settings.identities[task.stage]
        now = self.reads_of(task, list(entry.reads)) if entry.reads is not None else None
        why = why_not_kept(identity.facts, self._facts(entry.identity), entry.reads, now)
        if not why and entry.error is not None and self.settings.retries_failed:
            why = "it failed"
        why = why or self._clash(entry.outputs, task)
        if why:
            return None, why
        fault = self.folder.ledger.fault_of(entry)
        if fault:
            self.notes.append(f"{fault}: it is made again")
            return None, fault
        places = self._places(task, entry)
        if all(entry.outputs[output] == place for output, place in places.items()):
            return FoundResult(entry), ""
        if not self.is_dry:  # the same result has another place: an item has samples now, or none
            for output, place in places.items():
                link_file(self.folder.path / str(entry.outputs[output]), self.folder.path / place)
        return FoundResult(replace(entry, outputs={**entry.outputs, **places}), is_new=True), ""

    def _facts(self, identity: str) -> Mapping[str, str] | None:
        if identity not in self._was:
            self._was[identity] = None if self.folder is None else self.folder.ledger.facts_of(identity)
        return self._was[identity]

    def _clash(self, outputs: Mapping[str, Any], task: StageTask) -> str:
        """An output must not have the name of something that the item has already; the stage says so."""
        taken = sorted(outputs.keys() & self.flow.values(task).keys())
        return f"the item has `{taken[0]}` already" if taken else ""

    def _places(self, task: StageTask, entry: LedgerEntry) -> dict[str, str]:
        """Where a result's files belong now."""
        stage, strand = self.spec.stages[task.stage], self.flow.strands[task.strand]
        sample = f"sample-{strand.sample}/" if task.stage in self._sampled else ""
        found = {name: stage.place_of(name, strand.item.id, sample) for name in entry.files}
        return {name: place for name, place in found.items() if place is not None}

    def _in_cache(self, task: StageTask, cache: ResultCache) -> FoundResult | None:
        found = self._cached(task, cache)
        if found is None or self._clash(found.outputs, task):
            return None
        places = self._places(task, found)
        if self.is_dry or self.folder is None:
            entry = replace(found, outputs={**found.outputs, **places})
        elif (entry := cache.take(found, places, self.folder.path)) is None:
            return None
        self.reuse[task.stage].n_cached += 1
        self.reuse[task.stage].timed(found.seconds)
        return FoundResult(entry, is_new=True)

    def _cached(self, task: StageTask, cache: ResultCache) -> LedgerEntry | None:
        identity = self.settings.identities[task.stage].digest
        return cache.find(identity, lambda names: self.reads_of(task, names))


@contextlib.contextmanager
def reuse_settings(
    spec: "JobSpec",
    folder: Path,
    *,
    cache: str | Path | None = None,
    fresh: Collection[str] = (),
    retries_failed: bool = False,
) -> Iterator[ReuseSettings]:
    """Gather what a run of ``spec`` may take over; ``folder`` is that of the job file.

    cache  wins over the job's; "" for none
    Raises UnknownName if ``fresh`` has a name that is no stage of the job.
    """
    known = [stage.name for stage in spec.stages]
    if unknown := [name for name in fresh if name not in known]:
        raise UnknownName("stage", unknown[0], known)
    memory = user_cache() / "digests.sqlite" if resolve().warm_start else None
    with contextlib.closing(ContentDigests(memory)) as digests:
        began_ns = time.time_ns()
        identities = [identify_stage(stage, folder, digests) for stage in spec.stages]
        notes = []
        if digests.n_read_bytes > _WORTH_SAYING_BYTES:
            size, seconds = digests.n_read_bytes / 2**30, (time.time_ns() - began_ns) / 1e9
            notes.append(f"read {size:.1f} GiB of weights in {seconds:.0f} s, to know them again")
        digests.save()
        job = JobFacts(spec.job.seed, folder, began_ns)
        with contextlib.ExitStack() as stack:
            shared = _cache(spec, folder, cache)
            if shared is not None:
                stack.callback(shared.close)
            yield ReuseSettings(
                job, identities, digests, shared, frozenset(fresh), retries_failed, tuple(notes)
            )


def no_reuse(spec: "JobSpec", folder: Path) -> contextlib.AbstractContextManager[ReuseSettings]:
    """For a run whose results nobody takes over: its stages are not looked into."""
    unknown = [StageIdentity("", {}) for _ in spec.stages]
    job = JobFacts(spec.job.seed, folder, 0)  # no file is older, so that none is read
    return contextlib.nullcontext(ReuseSettings(job, unknown, ContentDigests()))


def _cache(spec: "JobSpec", folder: Path, given: str | Path | None) -> ResultCache | None:
    section = spec.cache
    where = str(given) if given is not None else section.folder if section is not None else ""
    if not where:
        return None
    path = Path(where).expanduser()
    if given is None:
        path = folder / path
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is no folder, so it is no cache", hint="name a folder with --cache")
    return ResultCache(path, section.limit if section is not None else DEFAULT_LIMIT_BYTES)


def preview_reuse(
    spec: "JobSpec",
    items: Iterable[tuple[Item, Mapping[str, Any]]],
    settings: ReuseSettings,
    run_folder: Path,
) -> list[StageReuse]:
    """Return how much of each stage is in the run folder or the cache.

    [] if there is nothing to look through, or another process works in the folder.
    """
    rules = [StageRule.of(stage) for stage in spec.stages]
    flow = ItemFlow(rules, list(items), spec.job.seed, graph=spec.graph)
    with contextlib.ExitStack() as stack:
        folder = None
        if any((run_folder / FOLDER).glob("segment-*")):
            try:
                folder = stack.enter_context(RunFolder.of_run(run_folder))
            except ConfigError:
                return []
        kept = KeptResults(spec, flow, settings, folder, is_dry=True)
        if not kept.has_any:
            return []
        todo, left = flow.begin(), []
        while todo:
            task = todo.pop()
            found = kept.find(task)
            if found is None:
                left.append(task)
            elif found.entry.error is not None:
                todo += flow.failed(task, found.entry.error)
            else:
                todo += flow.done(task, found.entry.outputs, files=found.entry.files)
    _count_after(spec, flow, left, kept.reuse)
    return kept.reuse


def _count_after(spec: "JobSpec", flow: ItemFlow, left: Iterable[StageTask], reuse: list[StageReuse]) -> None:
    """Add to each stage the most tasks that may come to it from those that are to be done before."""
    sampled, graph = sampled_stages(spec.stages), spec.graph
    stuck = Counter((task.stage, flow.strands[task.strand].at) for task in left)
    reached: dict[int, dict[int, int]] = {}  # stage -> item -> tasks
    for (stage, at), n_strands in stuck.items():
        n_here = n_strands
        for later in sorted(graph.after[stage]):
            if len(graph.scopes[later]) > len(graph.scopes[stage]):
                reuse[later].is_open = True  # nobody knows how many parts there will be
            if graph.scopes[later] and graph.scopes[later] == graph.scopes[stage]:
                n_here = n_strands
            else:
                n_here = max(n_here, spec.stages[later].samples) if later in sampled else 1
            most = reached.setdefault(later, {})
            most[at] = max(most.get(at, 0), n_here)
    for stage, most in reached.items():
        reuse[stage].n_after = sum(most.values())
