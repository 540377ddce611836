"""Short calls, which wait in a line at which every worker reads, end as in the script's own pool.

The oracle is the plain loop over the same calls.
"""

import json
import subprocess
import sys

from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

EXEC = [sys.executable, "-m", "evenload", "exec"]
N_WORKERS, LIMIT_S = 3, 500
PROGRAM = """
import json, os, signal, sys, threading, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

def begin(*events):
    global gates
    gates = events

def work(call):
    x, opens, waits, seconds = call
    if opens is not None:
        gates[opens].set()
    if waits is not None and not gates[waits].wait(400):
        return "never"
    time.sleep(seconds)
    return x * x

def kill_one(pool, pause_s):
    time.sleep(pause_s)
    os.kill(pool._pool[0].pid, signal.SIGKILL)

if __name__ == "__main__":
    how, start, calls, killed_s = json.loads(sys.argv[1])
    context, n = get_context(start), N_WORKERS
    gates = [context.Event() for _ in calls]
    if how == "submit":
        with ProcessPoolExecutor(n, context, begin, gates) as pool:
            got = [one.result() for one in [pool.submit(work, call) for call in calls]]
    else:
        with context.Pool(n, begin, gates) as pool:
            if killed_s is not None:
                threading.Thread(target=kill_one, args=(pool, killed_s), daemon=True).start()
            if how == "imap":
                got = list(pool.imap(work, iter(calls)))
            elif how == "map":
                got = pool.map(work, calls, 1)
            else:
                got = [one.get() for one in [pool.apply_async(work, (call,)) for call in calls]]
    print(got)
""".replace("N_WORKERS", str(N_WORKERS))


def run(folder, plan, *before, program=PROGRAM):
    (folder / "own.py").write_text(program)
    words = [*before, sys.executable, folder / "own.py", json.dumps(plan)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


HOW = st.sampled_from(["apply", "submit", "imap", "map"])
SECONDS = st.sampled_from([0, 0, 0, 0.001, 0.02])


@st.composite
def gated_calls(draw):
    """Return calls of which some wait until a later one has begun, but never as many as there are workers."""
    calls = [[x, None, None, draw(SECONDS)] for x in range(draw(st.integers(0, 120)))]
    waiting = {}
    for at in sorted(draw(st.sets(st.sampled_from(range(len(calls))))) if calls else ()):
        lane = draw(st.integers(1, N_WORKERS - 1))
        if lane in waiting:
            calls[at][1] = waiting.pop(lane)
        else:
            calls[at][2] = waiting[lane] = at
    for at in waiting.values():
        calls[at][2] = None
    return calls


@settings(max_examples=examples(12))
@given(how=HOW, start=st.sampled_from(["fork", "fork", "spawn"]), calls=gated_calls())
def test_a_call_may_wait_for_a_later_one(tmp_path_factory, how, start, calls):
    folder = tmp_path_factory.mktemp("gates")
    assert run(folder, [how, start, calls, None], *EXEC) == f"{[x * x for x in range(len(calls))]}\n"


@settings(max_examples=examples(12))
@given(
    how=st.sampled_from(["apply", "imap", "map"]),
    seconds=st.lists(SECONDS, min_size=100, max_size=400),
    killed_s=st.floats(0, 0.3),
)
def test_a_kill_at_any_moment_loses_no_call(tmp_path_factory, how, seconds, killed_s):
    folder = tmp_path_factory.mktemp("kills")
    calls = [[x, None, None, each] for x, each in enumerate(seconds)]
    assert run(folder, [how, "fork", calls, killed_s], *EXEC) == f"{[x * x for x in range(len(calls))]}\n"


KILLED_WITH_A_CALL = """
import os, signal, sys
from multiprocessing import get_context

def work(x):
    from evenload.integrations.script.worker_ends import NONE, TaskReader

    take = TaskReader.take

    def take_and_die(reader):
        taken = take(reader)
        if taken != NONE:
            try:
                os.close(os.open("mark", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return taken
            os.kill(os.getpid(), signal.SIGKILL)
        return taken

    if x == 100:
        TaskReader.take = take_and_die
    return x * x

if __name__ == "__main__":
    with get_context("fork").Pool(2) as pool:
        results = [pool.apply_async(work, (x,)) for x in range(1000)]
        print([one.get() for one in results], os.path.exists("mark"))
"""


def test_a_worker_dies_with_a_call_that_it_has_told_nobody_of(tmp_path, monkeypatch):
    """It is killed between taking the call out of the line and saying so, when it is nobody's."""
    monkeypatch.chdir(tmp_path)
    squares = [x * x for x in range(1000)]
    assert run(tmp_path, None, *EXEC, program=KILLED_WITH_A_CALL) == f"{squares} True\n"
