"""Find out what may be taken over by a run: who its stages are, and which cache it shares with others."""

import contextlib
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from evenload._user_folders import user_cache
from evenload.errors import ConfigError, UnknownName
from evenload.pipeline.reuse.content_digests import ContentDigests
from evenload.pipeline.reuse.read_digests import JobFacts
from evenload.pipeline.reuse.stage_identity import StageIdentity, identify_stage
from evenload.pipeline.store.kept_results import ReuseSettings
from evenload.pipeline.store.result_cache import DEFAULT_LIMIT_BYTES, ResultCache
from evenload.settings import resolve

if TYPE_CHECKING:
    from evenload.pipeline.job.spec import JobSpec

_WORTH_SAYING_BYTES = 1 << 30


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
    """
    check_stages(spec, fresh)
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


def check_stages(spec: "JobSpec", names: Collection[str]) -> None:
    """Raise UnknownName for a name that is no stage of the job."""
    known = [stage.name for stage in spec.stages]
    for name in names:
        if name not in known:
            raise UnknownName("stage", name, known)


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
    return ResultCache.open(path, section.limit if section is not None else DEFAULT_LIMIT_BYTES)
