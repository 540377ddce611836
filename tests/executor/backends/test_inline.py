"""Tests what a backend must keep that runs everything in the caller."""

import gc
import os
import random
import sys
import time
import types

import pytest

import evenload

# Where a device is set and taken back.
PLACES = tuple(os.sep + name for name in ("inline.py", "environment.py", "contextlib.py"))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("policy", ["measured", "pull"])
def test_an_item_is_run_once_whatever_the_clock_does(
    seed: int, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The items are the caller's own objects: a copy that runs one again would change it again."""
    chance, passed_s, clock = random.Random(seed), 0.0, time.monotonic

    def jumps() -> float:
        nonlocal passed_s
        if chance.random() < 0.05:
            passed_s += chance.choice([0.1, 3.0, 100.0])
        return clock() + passed_s

    monkeypatch.setattr(time, "monotonic", jumps)
    items = [[0] * chance.randrange(5) for _ in range(chance.randrange(3, 40))]
    expected = [[*item, len(item)] for item in items]
    with evenload.Executor("cpu*2", backend="inline") as executor:
        for _ in range(2):
            got = list(executor.map(_grow, [list(item) for item in items], policy=policy))
            assert got == expected


def _grow(item: list) -> list:
    item.append(len(item))
    return item


@pytest.mark.parametrize("kind", ["call", "c_return"])
def test_ctrl_c_at_any_moment_leaves_no_device_behind(kind: str) -> None:
    """Python looks for signals where a function begins, and after a call of one in C."""
    list(evenload.map(_named, range(1), devices="cpu*2", backend="inline", echo=False))
    at = 1
    while _is_interrupted(kind, at):
        assert evenload.current_device() is None, f"moment {at}"
        at += 1
    assert at > 20, "there are as many at least"


def _is_interrupted(kind: str, at: int) -> bool:
    """By a KeyboardInterrupt at the ``at``-th moment; False if there are fewer."""
    n_moments, before = 0, sys.getprofile()

    def interrupts(frame: types.FrameType, event: str, _: object) -> None:
        nonlocal n_moments
        near = [one.f_code.co_filename for one in (frame, frame.f_back) if one is not None]
        if event == kind and any(name.endswith(PLACES) for name in near):
            n_moments += 1
            if n_moments == at:
                raise KeyboardInterrupt

    gc.disable()  # what it ends may be anybody's, and swallows what is raised there
    sys.setprofile(interrupts)
    try:
        list(evenload.map(_named, range(1), devices="cpu*2", backend="inline", echo=False))
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(before)
        gc.enable()
    return n_moments >= at


def _named(item: int) -> str:
    device = evenload.current_device()
    assert device is not None
    return device.id
