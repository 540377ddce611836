"""Whatever becomes of the workers, a pool's calls have their results.

The oracle is the plain loop over the same items; which of them end their worker, and when, is random.
"""

import json
import subprocess
import sys

import pytest
from examples_count import ALL, examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("joblib", reason="joblib is not installed")
PROGRAM = """
import json, os, signal, sys, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

def work(item):
    x, deed, mark = item
    if deed and not os.path.exists(mark):
        open(mark, "w").close()
        if deed == "hang":
            time.sleep(1000)
        os.kill(os.getpid(), signal.SIGKILL) if deed == "kill" else os._exit(0)
    return x * x

if __name__ == "__main__":
    folder, how, start, chunk, most, deeds = json.loads(sys.argv[1])
    items = [(x, deed, f"{folder}/{x}") for x, deed in enumerate(deeds)]
    if how == "executor":
        with ProcessPoolExecutor(3, mp_context=get_context(start)) as pool:
            got = list(pool.map(work, items, chunksize=chunk or 1))
    elif how == "joblib":
        import joblib

        got = joblib.Parallel(n_jobs=3, batch_size=chunk or "auto")(map(joblib.delayed(work), items))
    else:
        with get_context(start).Pool(3, maxtasksperchild=most) as pool:
            if how == "map":
                got = pool.map(work, items, chunk)
            elif how == "imap":
                got = list(pool.imap(work, iter(items), chunk or 1))
            else:
                got = [one.get() for one in [pool.apply_async(work, (item,)) for item in items]]
            pool.close()
            pool.join()
    print(got)
"""
PLANS = st.tuples(
    st.sampled_from(["map", "imap", "apply", "executor", *["joblib"] * ALL]),
    st.sampled_from(["fork", "fork", "spawn"]),
    st.sampled_from([None, 1, 3]),
    st.sampled_from([None, 2, 7]),
    st.lists(st.sampled_from([None] * 8 + ["kill", "exit", "hang"]), max_size=20),
)


@settings(max_examples=examples(10))
@example(plan=("joblib", "fork", None, None, [*[None] * 3, "hang", *[None] * 30, "kill"]))
@given(plan=PLANS)
def test_calls_outlive_their_workers(tmp_path_factory, plan):
    folder = tmp_path_factory.mktemp("marks")
    how, start, chunk, most, deeds = plan
    if chunk != 1:  # of the items of one chunk, two may end a worker each, and a third would be given up
        deeds = [deed if at % 31 == 3 else None for at, deed in enumerate(deeds)]
    (folder / "own.py").write_text(PROGRAM)
    told = json.dumps([str(folder), how, start, chunk, most, deeds])
    command = [
        sys.executable,
        "-m",
        "evenload",
        "exec",
        "--timeout",
        "8",
        sys.executable,
        folder / "own.py",
        told,
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert ended.stdout == f"{[x * x for x in range(len(deeds))]}\n", ended.stderr
    n_deeds = sum(1 for deed in deeds if deed)
    assert (f"{n_deeds} worker" in ended.stderr) == (n_deeds > 0), ended.stderr
