"""One bad item beside eleven healthy ones: what becomes of the healthy ones, of the executor, of the machine?

python benchmarks/executor_faults.py [--peers evenload,pebble] [--faults crash,hang] [--ray]

Each case runs in an interpreter and session of its own, on two workers. A cell is "ok" if all healthy
results came, the bad item ended with an error (with its value, if it could succeed), the same executor ran
other work afterwards, closing took less than two seconds, and two seconds later no process and no shared
memory was left. Otherwise it says what went wrong.

Cases run one after another, as what one leaves in shared memory would be taken for another's.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fault_peers
import psutil
from fault_peers import BAD, LIMIT_S, N_ITEMS, PEERS
from record import record

FAULTS = {
    "exception": "an ordinary exception",
    "killed once": "worker killed once (SIGKILL)",
    "crash": "segmentation fault, every time",
    "hang": "hang, no limit set",
    "hang, limit": "hang, time limit set",
    "hang holding the GIL, limit": "hang holding the GIL, limit set",
    "exception not picklable": "exception that cannot be pickled",
    "exception not unpicklable": "exception that cannot be unpickled",
    "result not picklable": "result that cannot be pickled",
    "sys.exit": "`sys.exit` in the task",
    "3 GB result": "a result of 3 GB",
    "Ctrl-C": "Ctrl-C in the program",
    "program killed": "program killed (SIGKILL)",
}
SIGNALS = {"Ctrl-C": signal.SIGINT, "program killed": signal.SIGKILL}
SUCCEEDS = ("killed once", "3 GB result")
TAG = "EXECUTOR_FAULTS_CASE"
CLOSE_S, LEAVE_S = 2.0, 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--peers", help="only these")
    parser.add_argument("--faults", help="only these, separated by semicolons")
    parser.add_argument("--ray", action="store_true", help="with Ray tasks, and evenload on Ray")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        return run_case(*json.loads(options.case))
    names = options.peers.split(",") if options.peers else [n for n in PEERS if options.ray or "Ray" not in n]
    missing = sorted(
        {PEERS[name].package for name in names if find_spec(PEERS[name].package or "sys") is None}
    )
    if missing:
        raise SystemExit(f"to compare with them: pip install {' '.join(missing)}; or name others by --peers")
    faults = options.faults.split(";") if options.faults else list(FAULTS)
    rows = []
    for fault in faults:
        rows.append(
            {"fault": FAULTS[fault]} | {name: verdict(fault, name, observe(fault, name)) for name in names}
        )
        print(rows[-1], file=sys.stderr, flush=True)
    record("executor_faults", rows, is_of_speed=False, n_items=N_ITEMS, limit_s=LIMIT_S)


# --- one case, seen from outside --------------------------------------------------------------------


def observe(fault: str, name: str) -> dict[str, Any]:
    """Run the case, and look at what it leaves."""
    tag = f"{os.getpid()}-{name}-{fault}"
    memory_before = shared_memory()
    path = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    with tempfile.TemporaryDirectory() as folder:
        program = subprocess.Popen(
            [sys.executable, __file__, "--case", json.dumps([fault, name, folder])],
            env={**os.environ, TAG: tag, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        seen = strike(program, SIGNALS[fault]) if fault in SIGNALS else last_line(program, 150.0)
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(5.0)
        until = time.monotonic() + LEAVE_S
        while tagged(tag) and time.monotonic() < until:
            time.sleep(0.05)
        left = tagged(tag)
        seen["processes_left"] = len(left)
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        program.kill()
        program.communicate()
    left_behind = shared_memory() - memory_before
    for _ in range(3):  # what passes through the hands of other programs at this moment is gone at the next
        if not left_behind:
            break
        time.sleep(0.3)
        left_behind = unused(left_behind)
    seen["memory_left"] = len(left_behind)
    return seen


def strike(program: subprocess.Popen, number: int) -> dict[str, Any]:
    """Send a signal while all workers work; how long until the program has ended?"""
    assert program.stdout is not None
    program.stdout.readline()
    time.sleep(1.0)
    began = time.monotonic()
    os.killpg(program.pid, number) if number == signal.SIGINT else program.send_signal(number)
    try:
        program.wait(30.0)
    except subprocess.TimeoutExpired:
        return {"exit_s": None}
    return {"exit_s": time.monotonic() - began}


def last_line(program: subprocess.Popen, seconds: float) -> dict[str, Any]:
    """The JSON that the case prints. Workers that survive may hold its pipe open, so its end is no sign."""
    lines: list[bytes] = []

    def read() -> None:
        assert program.stdout is not None
        for line in program.stdout:
            lines.append(line)
            if line.startswith(b"RESULT "):
                return

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(seconds)
    found = [line for line in lines if line.startswith(b"RESULT ")]
    return json.loads(found[-1][7:]) if found else {"died": program.poll()}


def tagged(tag: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(TAG) == tag:
                found.append(process)
    return found


def shared_memory() -> set[str]:
    """The files in shared memory."""
    folder = Path("/dev/shm")
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def unused(names: set[str]) -> set[str]:
    """Those that are there and that no process has mapped or open: what other programs use is theirs."""
    used: set[str] = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            folder = Path(f"/proc/{process.pid}")
            seen = (folder / "maps").read_text()
            seen += "\n".join(os.readlink(entry) for entry in (folder / "fd").iterdir())
            used |= {name for name in names if f"/dev/shm/{name}" in seen}
    return (names - used) & shared_memory()


# --- one case, from inside --------------------------------------------------------------------------


def run_case(fault: str, name: str, folder: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    peer: Any = PEERS[name]()
    peer.start(2)
    list(peer.imap(fault_peers.echo, range(8), 1))
    if fault in SIGNALS:
        print("READY", flush=True)
        list(peer.imap(fault_peers.long_item, range(20), 1))
        return
    limit_s = LIMIT_S if "limit" in fault else None
    patience_s = 75.0 if "GB" in fault else 10.0
    items = [(number, fault, os.path.join(folder, "marker")) for number in range(N_ITEMS)]
    began = time.monotonic()
    found, why = within(lambda: peer.outcomes(fault_peers.item, items, patience_s, limit_s), patience_s + 10)
    seen: dict[str, Any] = {"seconds": time.monotonic() - began, "stuck": why, "has_limit": peer.has_limit}
    if found is not None:
        seen["healthy"] = sum(found.get(n, ("",))[0] == "value" for n in range(N_ITEMS) if n != BAD)
        kind, value = found.get(BAD, ("missing", ""))
        seen["bad"] = kind
        seen["text"] = str(value)[:100] if kind != "value" else ""
        found.clear()
    _, seen["reuse"] = within(lambda: list(peer.imap(fault_peers.echo, range(4), 1)), 10.0)
    began = time.monotonic()
    _, seen["close"] = within(peer.close, 10.0)
    seen["close_s"] = time.monotonic() - began
    print("RESULT " + json.dumps(seen), flush=True)
    os._exit(0)


def within(call: Callable[[], Any], seconds: float) -> tuple[Any, str]:
    """What ``call`` returns, or why it does not."""
    box: list[Any] = []
    why: list[str] = []

    def run() -> None:
        try:
            box.append(call())
        except BaseException as error:
            why.append(fault_peers.text_of(error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return (box[0] if box else None), ("hangs" if thread.is_alive() else why[0] if why else "")


# --- the table --------------------------------------------------------------------------------------


def verdict(fault: str, name: str, seen: dict[str, Any]) -> str:
    faults = []
    if fault in SIGNALS:
        if seen["exit_s"] is None:
            faults.append("does not end")
        elif fault == "Ctrl-C" and seen["exit_s"] > CLOSE_S:
            faults.append(f"ends after {seen['exit_s']:.0f} s")
    elif "died" in seen:
        faults.append("the program hangs" if seen["died"] is None else f"the program dies ({seen['died']})")
    else:
        faults += shortcomings(fault, seen)
    for kind, what in (("processes_left", "process"), ("memory_left", "shared-memory file")):
        if seen[kind]:
            n = seen[kind]
            faults.append(f"{n} {what}{'' if n == 1 else 'es' if what == 'process' else 's'} left")
    return "; ".join(faults) or "ok"


def shortcomings(fault: str, seen: dict[str, Any]) -> list[str]:
    if "healthy" not in seen:
        return ["map hangs" if seen["stuck"] == "hangs" else f"map raises {seen['stuck'].partition(':')[0]}"]
    faults = []
    if seen["healthy"] < N_ITEMS - 1:
        faults.append(f"{seen['healthy']} of {N_ITEMS - 1}")
    if "limit" in fault and not seen["has_limit"]:
        faults.append("no limit to set")
    elif fault != "hang" and seen["bad"] == "missing":
        faults.append("bad item never ends")
    elif fault in SUCCEEDS and seen["bad"] != "value":
        faults.append("bad item fails")
    elif fault not in (*SUCCEEDS, "hang") and seen["bad"] == "value":
        faults.append("bad item gives a value")
    if seen["reuse"]:
        faults.append("hangs afterwards" if seen["reuse"] == "hangs" else "of no use afterwards")
    if seen["close"] == "hangs":
        faults.append("close hangs")
    elif seen["close"]:
        faults.append("close fails")
    elif seen["close_s"] > CLOSE_S:
        faults.append(f"close takes {seen['close_s']:.0f} s")
    return faults


if __name__ == "__main__":
    main()
