"""The headline numbers of a run, as people read them."""

from dataclasses import replace

from evenload.executor.decide.summary import DeviceShare, Summary

SHORT = Summary(
    total=6, done=6, failed=0, wall_s=0.9, startup_s=0.0, items_per_s=6 / 0.9, bound_s=0.5,
    ratio_to_bound=1.8, limit="work", imbalance=2.0,
    devices={"a": DeviceShare(6, 6, 0.3, 0.3, 20.0), "b": DeviceShare(0, 0, 0.0, 0.0, None)},
)  # fmt: skip


def test_reads_as_a_sentence_and_a_line_a_device() -> None:
    devices = {"a": DeviceShare(6, 6, 3.0, 0.8, 2.0), "b": DeviceShare(2, 2, 1.0, 0.3, 2.0)}
    long = replace(SHORT, total=8, done=8, wall_s=3.6, startup_s=0.5, devices=devices)
    sentence, *lines = str(long).splitlines()
    assert sentence.startswith("8 of 8 done in 3.6 s on 2 devices (0.5 s to start); the work took 1.80x ")
    assert lines == [
        "  a  6 items in 3 s, 75% of all seconds of work",
        "  b  2 items in 1 s, 25% of all seconds of work",
    ]


def test_a_short_run_says_nothing_of_shares_and_a_broken_one_how_much_there_was() -> None:
    text = "6 of 6 done in 0.9 s on 2 devices\n  a  6 items in 0.3 s\n  b  0 items in 0 s"
    assert str(SHORT) == repr(SHORT) == text
    broken = replace(SHORT, total=100, done=5, failed=1)
    assert str(broken).startswith("5 of 100 done in 0.9 s on 2 devices, 1 failed")
