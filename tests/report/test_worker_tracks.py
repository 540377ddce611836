"""One lane per worker slot: a replacement takes over the lane of the one it replaces."""

from evenload.events import WorkerExited, WorkerStarted
from evenload.report.worker_tracks import WorkerTracks


def test_a_replacement_takes_the_lane_of_the_dead():
    lanes = WorkerTracks()
    lanes.see(WorkerStarted(0.0, "cuda:0", "a"))
    lanes.see(WorkerStarted(0.0, "cuda:0", "b"))
    lanes.see(WorkerExited(1.0, "cuda:0", "a", "killed"))
    lanes.see(WorkerStarted(2.0, "cuda:0", "c"))
    assert (lanes.of("cuda:0", "c"), lanes.of("cuda:0", "b")) == (0, 1)
    assert lanes.n("cuda:0") == 2


def test_a_late_span_of_a_dead_worker_stays_on_its_lane():
    lanes = WorkerTracks()
    lanes.see(WorkerStarted(0.0, "cpu:0", "a"))
    lanes.see(WorkerExited(1.0, "cpu:0", "a", "killed"))
    assert lanes.of("cpu:0", "a") == 0
    lanes.see(WorkerExited(1.0, "cpu:0", "a", "said twice"))
    assert lanes.of("cpu:0", "b") == 0
    assert lanes.of("cpu:0", "c") == 1


def test_devices_have_lanes_of_their_own():
    lanes = WorkerTracks()
    assert lanes.key("cpu:0", "a") == "cpu:0"
    assert lanes.key("cpu:1", "a") == "cpu:1"
    assert lanes.key("cpu:0", "b") == "cpu:0/1"
    assert lanes.n("cuda:7") == 0
