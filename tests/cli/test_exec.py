"""``evenload exec``: what it runs, what it says at the end, what it refuses. The oracle is the caller."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXEC = [sys.executable, "-m", "evenload", "exec"]
SCRIPT = """
import multiprocessing, os, signal, sys

def work(x):
    if x == 3 and not os.path.exists("marked"):
        open("marked", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return x * x

if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(sum(pool.map(work, range(100))), sys.argv[1:])
"""


def run(*words, cwd):
    words = [*EXEC, *map(str, words)]
    return subprocess.run(words, capture_output=True, text=True, cwd=cwd, timeout=500)


def alone(script, cwd):
    return subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=cwd, timeout=500)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "own.py").write_text(SCRIPT)
    return tmp_path


def test_a_killed_workers_items_are_done_and_told(folder):
    ended = run("-o", "told.json", sys.executable, "own.py", "-o", "--json", cwd=folder)
    assert (ended.returncode, ended.stdout) == (0, f"{sum(x * x for x in range(100))} ['-o', '--json']\n")
    told = json.loads((folder / "told.json").read_text())
    assert (told["schema"], told["items"], told["functions"]) == (1, 100, {"work": 100})
    assert (told["workers_lost"], told["left"]) == (1, {})
    assert told["pools"] == [{"kind": "multiprocessing.Pool", "workers": 2, "items": 100}]
    assert 0 <= told["bound_s"] <= told["wall_s"]
    assert "evenload: 100 items of work in" in ended.stderr
    assert "1 worker died" in ended.stderr


def test_it_is_quiet_or_says_json(folder):
    (folder / "marked").touch()
    assert json.loads(run("--json", "own.py", cwd=folder).stderr)["items"] == 100
    (folder / "other.py").write_text("print('nothing to deal')")
    assert run("-q", sys.executable, "other.py", cwd=folder).stderr == ""
    told = json.loads(run("--json", sys.executable, "other.py", cwd=folder).stderr)
    assert (told["pools"], told["items"], told["workers_lost"], told["left"]) == ([], 0, 0, {})


def test_calls_that_never_ended_are_told_as_such(folder):
    """The oracle is the script, which ends while its only call runs."""
    (folder / "own.py").write_text(
        "import multiprocessing, os, signal\n"
        "out, end = os.pipe()\n"
        "def stay():\n"
        "    os.write(end, b'!')\n"
        "    signal.pause()\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('fork').Pool(1) as pool:\n"
        "        pool.apply_async(stay)\n"
        "        os.read(out, 1)\n"
    )
    assert "no call that this script gave to a pool has ended" in run("own.py", cwd=folder).stderr


def test_workers_that_joblib_itself_ends_have_not_died(folder):
    """The oracle is joblib, which kills the workers of a generator that nobody reads any more."""
    pytest.importorskip("joblib", reason="joblib is not installed")
    (folder / "own.py").write_text(
        "import joblib, time\n"
        "if __name__ == '__main__':\n"
        "    calls = [joblib.delayed(time.sleep)(0), *[joblib.delayed(time.sleep)(400)] * 3]\n"
        "    some = joblib.Parallel(n_jobs=2, return_as='generator', batch_size=1)(calls)\n"
        "    print(next(some))\n"
        "    some.close()\n"
    )
    ended = run("-o", "told.json", "own.py", cwd=folder)
    assert (ended.stdout, ended.returncode) == ("None\n", 0), ended.stderr
    assert json.loads((folder / "told.json").read_text())["workers_lost"] == 0


def test_observing_leaves_the_pools_and_measures_them(folder):
    """The oracle is the class of the pool, which the script prints, and the number of its items."""
    (folder / "own.py").write_text(
        "import multiprocessing, concurrent.futures as futures, time\n"
        "def work(x):\n"
        "    time.sleep(0.01)\n"
        "    return x\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.Pool(2) as pool, futures.ProcessPoolExecutor(2) as executor:\n"
        "        print(sum(pool.map(work, range(10))), sum(executor.map(work, range(6), chunksize=2)))\n"
        "        print(hasattr(pool._inqueue, 'totals'), type(executor).__mro__[1].__name__)\n"
    )
    ours = run("-o", "told.json", sys.executable, "own.py", cwd=folder)
    assert ours.stdout == "45 15\nTrue ProcessPoolExecutor\n"
    observed = run("--observe", "-o", "seen.json", sys.executable, "own.py", cwd=folder)
    assert observed.stdout == "45 15\nFalse Executor\n"
    told, seen = (json.loads((folder / name).read_text()) for name in ("told.json", "seen.json"))
    assert (told["items"], told["functions"], told["observed"]) == (16, {"work": 16}, False)
    assert (seen["items"], seen["functions"], seen["observed"]) == (16, {"work": 16}, True)
    assert "dealt as the script has it" not in observed.stderr


def test_a_call_that_always_hangs_fails_by_its_limit_and_the_time_counts(folder):
    """Oracle: the script's own clock around its calls, and twice the limit."""
    (folder / "own.py").write_text(
        "import multiprocessing, signal, time\n"
        "def work(x):\n"
        "    return signal.pause() if x == 3 else x\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('fork').Pool(2) as pool:\n"
        "        began = time.monotonic()\n"
        "        calls = [pool.apply_async(work, (x,)) for x in range(8)]\n"
        "        try:\n"
        "            [call.get() for call in calls]\n"
        "        except Exception as error:\n"
        "            print(error, time.monotonic() - began, sep='|')\n"
    )
    ended = run("--timeout", "1", "-o", "told.json", sys.executable, "own.py", cwd=folder)
    said, seconds = ended.stdout.rsplit("|", 1)
    assert "work took longer than 1 s, 2 times" in said
    told = json.loads((folder / "told.json").read_text())
    assert told["items"] == 7
    assert 2.0 <= told["wall_s"] <= float(seconds), "two limits, by two workers one after the other"


def test_a_pool_whose_workers_leave_after_chunks_has_the_chunks_of_its_own(folder):
    """Oracle: the script alone. A function counts its calls in a process, which is renewed after a chunk."""
    (folder / "own.py").write_text(
        "import multiprocessing\n"
        "n = 0\n"
        "def work(x):\n"
        "    global n\n"
        "    n += 1\n"
        "    return n\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('fork').Pool(2, maxtasksperchild=1) as pool:\n"
        "        print(pool.map(work, range(100)))\n"
    )
    plain = alone("own.py", cwd=folder)
    assert run("-q", sys.executable, "own.py", cwd=folder).stdout == plain.stdout


def test_without_a_standard_error_standard_output_is_the_scripts_alone(folder):
    (folder / "marked").touch()
    line = ["sh", "-c", '"$@" 2>&-', "sh", *EXEC, "--json", sys.executable, "own.py"]
    ended = subprocess.run(line, stdout=subprocess.PIPE, text=True, cwd=folder, timeout=500)
    assert (ended.returncode, ended.stdout) == (0, f"{sum(x * x for x in range(100))} []\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no device that is full")
def test_figures_that_cannot_be_written_are_told_and_cost_nothing(folder):
    (folder / "marked").touch()
    ended = run("-o", "/dev/full", sys.executable, "own.py", cwd=folder)
    assert ended.returncode == 0
    assert ended.stderr.startswith("error: ")
    assert "evenload: 100 items of work in" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_figures_of_an_earlier_run_do_not_stay(folder):
    (folder / "told.json").write_text("{}")
    (folder / "ends.py").write_text("import os\nos._exit(9)\n")
    assert run("-o", "told.json", sys.executable, "ends.py", cwd=folder).returncode == 9
    assert not (folder / "told.json").exists()
    refused = run("-o", "ends.py", sys.executable, "ends.py", cwd=folder)
    assert (refused.returncode, (folder / "ends.py").exists()) == (2, True)


def test_an_executor_is_broken_where_workers_cannot_begin(folder):
    """The oracle is the same script without us."""
    (folder / "own.py").write_text(
        "from concurrent.futures import ProcessPoolExecutor\n"
        "import os\n"
        "if __name__ == '__main__':\n"
        "    with ProcessPoolExecutor(2, initializer=os._exit, initargs=(3,)) as executor:\n"
        "        print(type(executor.submit(abs, 1).exception()).__name__)\n"
        "    with ProcessPoolExecutor(2) as executor:\n"
        "        error = executor.submit(os._exit, 4).exception()\n"
        "        print(sum(one.__name__ == 'BrokenProcessPool' for one in type(error).__mro__))\n"
    )
    plain = alone("own.py", cwd=folder)
    assert run(sys.executable, "own.py", cwd=folder).stdout == plain.stdout
    assert plain.stdout == "BrokenProcessPool\n1\n"


def test_devices_are_given_to_the_workers(folder):
    (folder / "own.py").write_text(
        "import multiprocessing, evenload, time\n"
        "def where(x):\n"
        "    time.sleep(0.01)\n"
        "    return evenload.current_device().id\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.Pool(4) as pool:\n"
        "        print(sorted(set(pool.map(where, range(100)))), len(pool._pool))\n"
    )
    ended = run("--devices", "cpu*2", sys.executable, "own.py", cwd=folder)
    assert ended.stdout == "['cpu:0', 'cpu:1'] 2\n"


def test_a_command_in_python_runs(folder):
    (folder / "test_own.py").write_text("import own\ndef test_it():\n    assert own.work(2) == 4\n")
    pytest_command = Path(sys.executable).with_name("pytest")
    if not pytest_command.exists():
        pytest.skip("the command pytest is not beside this interpreter")
    ended = run(pytest_command, "-q", "-p", "no:cacheprovider", "test_own.py", cwd=folder)
    assert ended.returncode == 0, ended.stdout
    assert "1 passed" in ended.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["no-such-command"], "there is no command"),
        (["python"], "names no script"),
        (["python", "-m"], "names no script"),
        (["python", "-c", "print(1)"], "names no script"),
        (["/bin/sh", "-c", "true"], "is not written in Python"),
    ],
)
def test_what_is_no_script_is_refused(command, monkeypatch, words, says):
    monkeypatch.setattr(os, "execv", lambda *_: pytest.fail("it begins"))
    code, _, err = command("exec", *words)
    assert (code, says in err) == (2, True)


def test_a_script_that_is_not_there_is_told_by_the_interpreter(folder):
    ended = run(sys.executable, "gone.py", cwd=folder)
    plain = alone("gone.py", cwd=folder)
    assert (ended.returncode, ended.stderr) == (plain.returncode, plain.stderr)


@pytest.mark.parametrize(
    "options",
    [
        *(("--timeout", seconds) for seconds in ("-1", "0", "nan", "inf", "1e7", "soon")),
        ("--observe", "--dash"),
        *((word,) for word in ("--dsah", "-m", "--live")),
        *(("-o", place) for place in ("", ".", "nowhere/told.json")),
        *(("--devices", spec) for spec in ("", "nope", "cpu*0", "cpu,cpu", "cpu\x1b[2J")),
    ],
    ids=repr,
)
def test_what_cannot_be_done_is_refused_before_the_script_begins(folder, command, options, monkeypatch):
    monkeypatch.chdir(folder)  # where it would begin, this process would become the script
    monkeypatch.setattr(os, "execv", lambda *_: pytest.fail("it begins"))
    assert command("exec", *options, "python", "own.py")[0] == 2
