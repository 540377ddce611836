"""Several runs at once over one cache that is too small, ended by SIGKILL between any two changes of a file.

A driver of its own forks the runs, so that nothing of this process is shared. In each run, one of its calls
that change the disk (link, rename, replace, unlink) ends it, at a place drawn at random.
"""

import subprocess
from pathlib import Path

import pytest
from forked_workers import python_command
from pipeline.written_jobs import made_by, write_job

from evenload.pipeline.store import result_cache

STAGES = """
from pathlib import Path
class Draw:
    def __init__(self, context, *, k=0):
        self.k = k
    def __call__(self, inputs, item):
        return {"drawn": f"{self.k} {item.seed} " * (item.seed % 400), "n": item.seed % 7}
class Score:
    def __init__(self, context, *, k=0):
        self.k = k
    def __call__(self, inputs, item):
        return {"score": len(Path(inputs["drawn"]).read_text()) + self.k, "page": f"{inputs['n']} {self.k}"}
"""
JOB = """\
  - {name: draw, target: 'stages.py:Draw', params: {k: 0}, outputs: {drawn: txt}}
  - {name: score, target: 'stages.py:Score', params: {k: 0}, outputs: {page: txt}}
cache: {folder: cache}
"""
DRIVER = """
import os, random, signal, sys
from pathlib import Path
from evenload.pipeline import Pipeline
from evenload.pipeline.run import session  # imported before the forks
from evenload.pipeline.planning import job_plan
from evenload.report import html, trace

home, seed, n_runs, n_rounds = Path(sys.argv[1]), *map(int, sys.argv[2:])
rng = random.Random(seed)

def begin(out, changes, cache, kill_after):
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        n_left = [kill_after]
        def deadly(real):
            def call(*args, **named):
                n_left[0] -= 1
                if n_left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **named)
            return call
        for name in ("link", "rename", "replace", "unlink") if kill_after else ():
            setattr(os, name, deadly(getattr(os, name)))
        pipeline = Pipeline.from_yaml(home / "job.yaml", changes)
        result = pipeline.run(out=home / out, backend="inline", cache=cache)
        code = 0 if result.status == "done" else 3
    finally:
        os._exit(code)

def end(pid, may_die):
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == 0 or (may_die and status == -signal.SIGKILL), status
    return status == 0

jobs = [[f"draw.k={rng.randrange(2)}", f"score.k={rng.randrange(2)}"] for _ in range(n_runs)]
n_killed = 0
for at, changes in enumerate(jobs):
    end(begin(f"alone{at}", changes, "", 0), False)
for number in range(n_rounds + 1):
    limit = f"cache.limit={rng.choice([1, 30_000, 60_000, 10_000_000])}B"
    is_last = number == n_rounds
    pids = [
        begin(f"run{at}", [*changes, limit], None, 0 if is_last else rng.choice([0, *range(1, 60)]))
        for at, changes in enumerate(jobs)
    ]
    n_killed += sum(not end(pid, not is_last) for pid in pids)
print(n_killed)
"""


def share_and_compare(folder: Path, seed: int, n_runs: int, n_rounds: int, monkeypatch) -> int:
    """Returns how many runs were killed."""
    write_job(folder, STAGES, JOB, 5)
    (folder / "driver.py").write_text(DRIVER)
    command = [*python_command(), "driver.py", str(folder), *map(str, (seed, n_runs, n_rounds))]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, (seed, done.stderr)
    for at in range(n_runs):
        assert made_by(folder / f"run{at}") == made_by(folder / f"alone{at}"), (seed, at)
        assert not list((folder / f"run{at}").rglob("*.tmp")), seed
    monkeypatch.setattr(result_cache, "_ABANDONED_S", -1e9)  # as if all had ended an hour ago
    (folder / "cache/size").unlink(missing_ok=True)
    assert result_cache.evict(folder / "cache", 10**9)
    assert not list((folder / "cache").rglob("*.tmp")), seed
    for entry in (folder / "cache/results").rglob("*.file"):
        assert (entry.with_name(entry.name.partition(".")[0] + ".json")).is_file(), seed
    return int(done.stdout)


def test_runs_that_share_a_cache_and_are_killed_give_what_they_give_alone(
    tmp_path: Path, monkeypatch
) -> None:
    assert share_and_compare(tmp_path, 1, n_runs=2, n_rounds=2, monkeypatch=monkeypatch) > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 130))
def test_many_runs_that_share_a_cache_and_are_killed(tmp_path: Path, seed: int, monkeypatch) -> None:
    share_and_compare(tmp_path, seed, n_runs=4, n_rounds=6, monkeypatch=monkeypatch)
