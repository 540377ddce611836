"""The headline numbers of a run, from what its workers did."""

from evenload.executor.decide.summary import RunTally


def test_counts_bound_and_shares() -> None:
    tally = RunTally(["fast", "slow", "idle"])
    for _ in range(6):
        tally.add("fast", 1.0, 1, cost=None, is_good=True)
    for _ in range(2):
        tally.add("slow", 2.0, 1, cost=None, is_good=True)
    tally.add_waste("slow", 1.0)
    summary = tally.summarise(8, wall_s=6.9, startup_s=0.5, n_failed=1)
    assert (summary.total, summary.done, summary.failed) == (8, 7, 1)
    assert abs(summary.bound_s - 8 / 1.5) < 1e-9
    assert summary.ratio_to_bound is not None
    assert abs(summary.ratio_to_bound - 1.2) < 1e-9
    assert summary.devices["slow"].busy_s == 5.0
    assert summary.devices["slow"].items == 2
    assert summary.devices["fast"].utilisation == 6.0 / 6.9
    assert abs(summary.imbalance - 6.0 / (11.0 / 3)) < 1e-9
    assert summary.to_json()["schema"] == 1
    assert summary.to_json()["devices"]["fast"]["items"] == 6


def test_nothing_done_is_defined() -> None:
    summary = RunTally(["a"]).summarise(0, wall_s=0.0, startup_s=0.0)
    assert (summary.total, summary.bound_s, summary.ratio_to_bound, summary.imbalance) == (0, 0.0, None, 1.0)


def test_reads_as_a_sentence() -> None:
    tally = RunTally(["a", "b"])
    tally.add("a", 2.0, 4, cost=None, is_good=True)
    tally.add("b", 2.0, 4, cost=None, is_good=True)
    sentence = str(tally.summarise(8, wall_s=2.6, startup_s=0.5))
    assert (
        sentence
        == "8 of 8 done in 2.6 s on 2 devices (0.5 s to start); the work took 1.05x the least possible, 2 s"
    )
    assert str(RunTally(["a"]).summarise(0, wall_s=0.0, startup_s=0.0)) == "0 of 0 done in 0 s on 1 device"
