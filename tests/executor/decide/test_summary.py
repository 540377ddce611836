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


def test_reads_as_a_sentence_and_a_line_a_device() -> None:
    tally = RunTally(["a", "b"])
    tally.add("a", 3.0, 6, cost=None, is_good=True)
    tally.add("b", 1.0, 2, cost=None, is_good=True)
    sentence, *lines = str(tally.summarise(8, wall_s=3.6, startup_s=0.5)).splitlines()
    assert sentence.startswith("8 of 8 done in 3.6 s on 2 devices (0.5 s to start); the work took ")
    assert lines == [
        "  a  6 items in 3 s, 75% of all seconds of work",
        "  b  2 items in 1 s, 25% of all seconds of work",
    ]
    assert str(RunTally(["a"]).summarise(0, wall_s=0.0, startup_s=0.0)) == "0 of 0 done in 0 s on 1 device"


def test_a_short_run_says_nothing_of_shares_and_a_broken_one_how_much_there_was() -> None:
    tally = RunTally(["a", "b"])
    tally.add("a", 0.3, 6, cost=None, is_good=True)
    short = tally.summarise(6, wall_s=0.9, startup_s=0.0)
    assert (
        str(short)
        == repr(short)
        == "6 of 6 done in 0.9 s on 2 devices\n  a  6 items in 0.3 s\n  b  0 items in 0 s"
    )
    broken = tally.summarise(6, wall_s=0.9, startup_s=0.0, total=100, n_failed=1)
    assert str(broken).startswith("5 of 100 done in 0.9 s on 2 devices, 1 failed")
