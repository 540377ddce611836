"""``evenload exec --dash``: the page over HTTP, against what the script itself writes down."""

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

for package in ("starlette", "uvicorn"):
    pytest.importorskip(package, reason=f"{package} is not installed")

LIMIT_S = 500
SCRIPT = """
import multiprocessing, os, signal, sys
from multiprocessing import get_context

def work(x):
    if x == 5 and not os.path.exists("marked"):
        open("marked", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    if x == 7:
        raise ValueError("seven is no good")
    if x == 11:
        open("gate", "rb").close()  # until somebody opens the other end
    with open("ended", "ab", buffering=0) as ended:
        ended.write(b"!")
    return x

if __name__ == "__main__":
    with get_context("fork").Pool(2) as pool:
        calls = [pool.apply_async(work, (x,)) for x in range(12)]
        print([call.get() for call in calls if call is not calls[7]], flush=True)
        pool.close()
        pool.join()
"""


class Watched:
    """A script that runs below ``evenload exec --dash`` in ``folder``, and its page."""

    def __init__(self, folder, script):
        (folder / "own.py").write_text(script)
        self.passing = folder / "passing"
        self.passing.mkdir()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "evenload", "exec", "--dash", sys.executable, "own.py"],
            cwd=folder,
            env={**os.environ, "TMPDIR": str(self.passing)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        first = self.process.stderr.readline()
        self.url = re.fullmatch(r"live page: (http://127\.0\.0\.1:\d+/)\n", first)[1]

    def frames(self) -> Iterator[dict[str, Any]]:
        """What the page shows, again and again, until it ends."""
        shown = {}
        with (
            contextlib.suppress(http.client.HTTPException, ConnectionError),
            urllib.request.urlopen(self.url + "stream", timeout=LIMIT_S) as stream,
        ):
            for line in stream:
                if line.startswith(b"data:"):
                    shown |= json.loads(line[5:])
                    yield shown

    def is_gone(self) -> bool:
        """Whether the page is: no process serves it, and none of its files is left."""
        words = (" ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"]))
        serving = [one for one in words if "--until-eof" in one and str(self.passing) in one]
        return not serving and not list(self.passing.iterdir())


@pytest.fixture
def watch(tmp_path):
    begun = []

    def start(script: str) -> Watched:
        begun.append(Watched(tmp_path, script))
        return begun[-1]

    yield start
    for one in begun:
        one.process.kill()
        one.process.communicate(timeout=LIMIT_S)


def test_the_page_counts_what_the_script_counts(watch, until, tmp_path):
    """One call kills its worker, one raises, and the last waits: for the test, which opens its gate."""
    os.mkfifo(tmp_path / "gate")
    seen = watch(SCRIPT)
    frames = seen.frames()
    for frame in frames:
        counts = frame["summary"]["counts"].get("items", {})
        running = sum((frame["queues"] or {"running": {}})["running"].values())
        if (counts.get("failed"), running, counts.get("unfinished")) == (1, 1, 1):
            break
    n_ended = (tmp_path / "ended").stat().st_size
    assert (counts["done"], counts["total"]) == (n_ended, 12), "ten have ended; one failed, one waits"
    assert n_ended == 10
    assert [one["device"] for one in frame["summary"]["devices"]] == ["cpu:0", "cpu:1"]
    assert (frame["summary"]["name"], frame["summary"]["n_lost_workers"]) == ("own.py", 1)
    (failure,) = frame["failures"]
    assert (failure["error"], failure["message"]) == ("ValueError", "seven is no good")
    assert 'raise ValueError("seven is no good")' in failure["traceback"]
    open(tmp_path / "gate", "wb").close()
    *_, last = frames
    summary = last["summary"]
    assert (summary["status"], summary["n_done"], summary["n_failed"]) == ("failures", 11, 1)
    assert sum(one["n_items"] for one in summary["devices"]) == 12
    out, err = seen.process.communicate(timeout=LIMIT_S)
    assert out == f"{[x for x in range(12) if x != 7]}\n"
    assert (seen.process.returncode, err.splitlines()[-1]) == (0, "  1 worker died, and the script went on")
    until(seen.is_gone, "the page is gone")


def test_the_page_does_not_outlive_a_script_that_is_killed(watch, until, tmp_path):
    os.mkfifo(tmp_path / "gate")
    seen = watch(SCRIPT.replace("x == 11", "True"))
    frames = seen.frames()
    next(frame for frame in frames if sum((frame["queues"] or {"running": {}})["running"].values()) == 2)
    seen.process.kill()
    *_, _last = frames
    until(seen.is_gone, "the page is gone")
    open(tmp_path / "gate", "wb").close()  # its workers wait there


@pytest.mark.parametrize(
    ("ends", "status"), [("sys.exit(3)", "failed"), ("raise KeyboardInterrupt", "interrupted")]
)
def test_the_page_says_how_the_script_has_ended(watch, tmp_path, ends, status):
    os.mkfifo(tmp_path / "gate")
    seen = watch(SCRIPT.replace("        pool.close()", f"        {ends}").replace("x == 7", "x == 70"))
    frames = seen.frames()
    next(frames)
    open(tmp_path / "gate", "wb").close()
    *_, last = frames
    assert last["summary"]["status"] == status
    seen.process.communicate(timeout=LIMIT_S)
    assert seen.process.returncode == (3 if status == "failed" else -signal.SIGINT)


def test_the_script_finds_no_child_and_no_descriptor_of_the_page(watch, tmp_path):
    """It waits for all its children, closes all that it does not know, and opens files of its own there."""
    seen = watch(
        "import os\n"
        "try:\n"
        "    os.wait()\n"
        "except ChildProcessError:\n"
        "    print('no child')\n"
        "os.closerange(3, 200)\n"
        "files = [os.open(f'file{n}', os.O_CREAT | os.O_RDWR) for n in range(20)]\n"
        "import multiprocessing\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('fork').Pool(2) as pool:\n"
        "        print(sum(pool.map(abs, range(100))))\n"
    )
    out, err = seen.process.communicate(timeout=LIMIT_S)
    assert (out, seen.process.returncode) == ("no child\n4950\n", 0), err
    assert [path.stat().st_size for path in tmp_path.glob("file*")] == [0] * 20


def test_a_daemon_that_the_script_leaves_behind_keeps_no_page(watch, until, tmp_path):
    os.mkfifo(tmp_path / "gate")
    seen = watch(
        "import os\n"
        "if not os.fork():\n"
        "    os.setsid()\n"
        "    os.closerange(0, 3)\n"
        "    open('gate', 'rb').close()\n"
        "    os._exit(0)\n"
    )
    _, err = seen.process.communicate(timeout=LIMIT_S)
    assert (seen.process.returncode, "gave no work to a pool" in err) == (0, True)
    until(seen.is_gone, "the page is gone")
    open(tmp_path / "gate", "wb").close()
