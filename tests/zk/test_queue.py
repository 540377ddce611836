"""The queue of proofs: order, cancelling, time-outs, closing."""

import threading
from concurrent.futures import CancelledError

import pytest

from evenload.errors import ConfigError, ExecutorClosed, TaskTimeout
from evenload.zk.prover import ProveRequest
from evenload.zk.queue import ProverQueue


class Slow:
    """Stands where a Prover stands; its workers record what they prove and wait for a gate."""

    def __init__(self):
        self.gate, self.order, self.running = threading.Event(), [], threading.Event()

    def spawn_worker(self):
        return self

    def prove(self, witness, public=None, check=None):
        self.order.append(witness)
        self.running.set()
        while not self.gate.wait(0.01):
            check()
        check()
        if witness == "bad":
            raise ConfigError("bad witness")
        return witness


@pytest.fixture
def slow():
    made = Slow()
    yield made
    made.gate.set()


def test_higher_priority_first_then_in_order(slow):
    with ProverQueue(slow, 1) as queue:
        queue.submit(ProveRequest("first"))
        slow.running.wait(100)
        jobs = [
            queue.submit(ProveRequest(name, priority=p))
            for name, p in (("a", 0), ("b", 5), ("c", 0), ("d", 5))
        ]
        slow.gate.set()
        assert [job.result(100) for job in jobs] == ["a", "b", "c", "d"]
    assert slow.order == ["first", "b", "d", "a", "c"]


def test_cancel_in_the_queue_and_while_running(slow):
    with ProverQueue(slow, 1) as queue:
        running = queue.submit(ProveRequest("running"))
        slow.running.wait(100)
        waiting = queue.submit(ProveRequest("waiting"))
        waiting.cancel()
        running.cancel()
        assert isinstance(running.exception(100), CancelledError)
        assert isinstance(waiting.exception(100), CancelledError)
        slow.gate.set()
        assert queue.submit(ProveRequest("next")).result(100) == "next"
    assert slow.order == ["running", "next"]


def test_time_out_counts_from_submission(slow):
    with ProverQueue(slow, 1) as queue:
        job = queue.submit(ProveRequest("late", timeout_s=0.05))
        assert isinstance(job.exception(100), TaskTimeout)


def test_errors_stay_with_their_job(slow):
    slow.gate.set()
    with ProverQueue(slow, 2) as queue:
        jobs = [queue.submit(ProveRequest(name)) for name in ("x", "bad", "y")]
        kinds = [type(job.exception(100)) for job in jobs]
    assert kinds == [type(None), ConfigError, type(None)]
    with pytest.raises(ExecutorClosed):
        queue.submit(ProveRequest("after"))
    with pytest.raises(ConfigError, match="num_workers"):
        ProverQueue(slow, 0)


def leave_by_an_exception(slow, jobs):
    with ProverQueue(slow, 1) as queue:
        jobs.append(queue.submit(ProveRequest("first")))
        slow.running.wait(100)
        jobs.append(queue.submit(ProveRequest("second")))
        slow.gate.set()
        raise KeyError


def test_leaving_by_an_exception_drops_what_waits(slow):
    jobs = []
    with pytest.raises(KeyError):
        leave_by_an_exception(slow, jobs)
    assert jobs[0].result(100) == "first"
    assert jobs[1].done()
