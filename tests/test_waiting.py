"""``evenload.waiting`` and what a worker's process did meanwhile.

The oracle is the caller's clock, read around what was planted: sleeps, and loops that take a processor.
"""

import asyncio
import os
import subprocess
import sys
import threading
import time

import psutil
import pytest

import evenload
from evenload._waiting import Meter, waiting
from evenload.balance.factors import unknown_seconds
from evenload.events import EventLog, Span

NAP_S = 0.1


def compute(seconds=NAP_S):
    """Take a processor for so long; returns the seconds by the thread's own clock of the processor."""
    began = time.thread_time()
    while time.thread_time() - began < seconds:
        pass
    return time.thread_time() - began


def nap(_=None):
    with evenload.waiting():
        time.sleep(NAP_S)


async def nap_async():
    with waiting():
        await asyncio.sleep(NAP_S)


async def nap_while_another_computes():
    napping = asyncio.create_task(nap_async())
    await asyncio.sleep(0)
    compute(2 * NAP_S)
    await napping


def assert_computed(meter, least_s):
    """So much was computed; that is not judged where this process has a child, as another test may leave."""
    if psutil.Process().children():
        assert meter.cpu_s is None
    else:
        assert meter.cpu_s >= least_s


def in_threads(*functions):
    threads = [threading.Thread(target=one) for one in functions]
    for one in threads:
        one.start()
    for one in threads:
        one.join(timeout=500)


def nested():
    with waiting(), waiting():
        nap()


def that_raises():
    try:
        with waiting():
            time.sleep(NAP_S)
            raise ValueError("own")
    except ValueError:
        compute(NAP_S / 2)  # it waits no longer


async def several():
    await asyncio.gather(*(nap_async() for _ in range(5)))


TOLD = {
    "plain": nap,
    "nested": nested,
    "that raises": that_raises,
    "threads at once": lambda: in_threads(nap, nap, nap),
    "coroutines at once": lambda: asyncio.run(several()),
    "after work": lambda: (compute(), nap()),
}


@pytest.mark.parametrize("item", TOLD.values(), ids=TOLD)
def test_what_is_told_counts_once_however_many_wait(item):
    began, processor = time.monotonic(), time.process_time()
    with Meter() as meter:
        item()
    free_s = time.monotonic() - began - (time.process_time() - processor)  # no more than that was waited
    assert NAP_S * 0.9 <= meter.waited_s <= free_s + 0.01


@pytest.mark.parametrize(
    "item",
    [lambda: in_threads(nap, lambda: compute(2 * NAP_S)), lambda: asyncio.run(nap_while_another_computes())],
)
def test_what_is_computed_while_another_waits_is_work(item):
    began = time.monotonic()
    with Meter() as meter:
        item()
    most_s = time.monotonic() - began - NAP_S * 0.9
    assert meter.waited_s <= most_s
    assert_computed(meter, 2 * NAP_S * 0.9)


def test_a_thread_that_still_waits_at_the_end_of_a_chunk_counts_until_there():
    go_on, waits = threading.Event(), threading.Event()

    def wait():
        with waiting():
            waits.set()
            go_on.wait(500)

    thread = threading.Thread(target=wait)
    with Meter() as meter:
        thread.start()
        waits.wait(500)
        time.sleep(NAP_S)
    told_s = meter.waited_s
    with Meter() as later:
        time.sleep(NAP_S)
        go_on.set()
        thread.join(timeout=500)
    assert told_s >= NAP_S * 0.9
    assert later.waited_s == 0.0, "it is the earlier chunk's"


def test_outside_of_a_worker_it_does_nothing():
    with waiting():
        assert 1 + 1 == 2
    nested()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_in_a_child_that_an_item_forks_it_does_nothing():
    with Meter() as meter:
        pid = os.fork()
        if not pid:
            nested()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert meter.waited_s == 0.0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_comes_out_of_the_item_that_forked_it():
    with Meter():
        pid = os.fork()
    if not pid:
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


LOOP = f"import time\nwhile time.process_time() < {NAP_S}: pass"


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="this system does not tell of children")
def test_what_programs_compute_that_an_item_starts_is_work_and_one_that_goes_on_is_not_judged():
    with Meter() as ended:
        subprocess.run([sys.executable, "-c", LOOP], check=True, timeout=500)
    with Meter() as goes_on:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    child.communicate(b"\n", timeout=500)
    assert_computed(ended, NAP_S)
    assert goes_on.cpu_s is None


def test_little_of_a_processor_is_not_known_much_of_it_is():
    assert unknown_seconds(10.0, 0.0, 1.0) == 9.0
    assert unknown_seconds(10.0, 8.0, 0.5) == 1.5
    assert unknown_seconds(10.0, 8.0, 1.5) == 0.0
    assert unknown_seconds(10.0, 0.0, 5.0) == 0.0
    assert unknown_seconds(10.0, 0.0, None) == 0.0, "an old log"
    assert unknown_seconds(10.0, 10.0, 0.0) == 0.0


HOWS = {"nap": nap, "compute": compute, "several": lambda: asyncio.run(several())}


class Waits:
    """A task that has told before, in its constructor."""

    def __init__(self):
        nap()

    def __call__(self, how):
        HOWS[how]()


@pytest.mark.parametrize("backend", ["inline", "process"])
@pytest.mark.parametrize("task", [lambda how: HOWS[how]() and None, Waits], ids=["function", "class"])
def test_a_worker_tells_what_its_items_waited_and_computed(task, backend):
    events = []
    log = EventLog(events.append)
    list(evenload.map(task, list(HOWS), devices="cpu*1", backend=backend, policy="pull", events=log))
    spans = {one.index: one for one in events if isinstance(one, Span)}
    assert [spans[at].waited_s >= NAP_S * 0.9 for at in range(3)] == [True, False, True]
    assert all(one.waited_s <= one.busy_s for one in spans.values())
    assert spans[1].cpu_s is None or spans[1].cpu_s >= NAP_S * 0.9
