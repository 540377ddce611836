"""When requests may go to a server, by the test's clock. The oracle is the server's count of a minute."""

import fcntl
import heapq
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.pipeline.stages.server_pace import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    ServerPace,
    pause_s,
    seconds_of,
)


@given(st.integers(0, 2000), st.none() | st.floats(0, 1e9), st.floats(0, 1))
def test_pauses_grow_to_a_limit_and_are_what_the_server_asks_for(
    attempt: int, wanted_s: float | None, chance: float
) -> None:
    pause = pause_s(attempt, wanted_s, chance)
    assert FIRST_PAUSE_S / 2 <= pause <= LONGEST_PAUSE_S
    assert pause >= min(wanted_s or 0.0, LONGEST_PAUSE_S)
    assert pause_s(attempt + 1, wanted_s, chance) >= pause


def wait_s(pace: ServerPace, now: float) -> float:
    with pace.together():
        return pace.wait_s(now)


SPANS = {"12": 12.0, "0.5": 0.5, "6m0s": 360.0, "20ms": 0.02, "1h2m3.5s": 3723.5}
NO_SPANS = ("", None, "Wed, 21 Oct 2015 07:28:00 GMT", "-3", "nan", "1e400", "5s!", "9" * 50)


@pytest.mark.parametrize(("text", "seconds"), [*SPANS.items(), *((one, None) for one in NO_SPANS)])
def test_spans_of_time_are_read_as_servers_write_them(text: str | None, seconds: float | None) -> None:
    assert seconds_of(text) == seconds


@given(
    st.integers(0, 2**32), st.integers(1, 40), st.floats(5, 300), st.none() | st.floats(200, 5000),
    st.integers(1, 3),
)  # fmt: skip
def test_no_minute_has_more_than_its_limits_and_no_time_is_lost(
    seed: int, n_at_once: int, per_minute: float, tokens_per_minute: float | None, n_workers: int
) -> None:
    """Whoever of several workers sends each request."""
    rng = random.Random(seed)
    now, went = 0.0, []
    under_way: list[tuple[float, int, float, int]] = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pace" if n_workers > 1 else None
        paces = [ServerPace(per_minute, tokens_per_minute, file=file) for _ in range(n_workers)]
        for _ in range(60):
            one = rng.randrange(n_workers)
            while len(under_way) >= n_at_once or wait_s(paces[one], now) > 0:
                until = now + wait_s(paces[one], now)
                if under_way and (len(under_way) >= n_at_once or under_way[0][0] <= until):
                    now, took, reckoned, who = heapq.heappop(under_way)
                    with paces[who].together():
                        paces[who].answered(now, {}, took, reckoned)
                    paces[who].end()
                else:
                    now = until + 1e-9
            took = rng.randint(40, 60)
            went.append((now, took))
            with paces[one].together():
                heapq.heappush(under_way, (now + rng.random(), took, paces[one].begin(now, 50), one))
    for first_s, _ in went:
        inside = [took for at, took in went if first_s <= at < first_s + 60]
        assert len(inside) <= per_minute + 1 + 1e-6
        if tokens_per_minute is not None:  # what is under way is only reckoned
            assert sum(inside) <= tokens_per_minute * 1.25 + 60 * min(n_at_once, len(inside))
    if tokens_per_minute is None:
        assert went[-1][0] <= 59 * (60 / per_minute + 1 / n_at_once) + 1


def test_one_refusal_holds_all_and_those_under_way_say_nothing_new() -> None:
    pace = ServerPace()
    for _ in range(8):
        pace.begin(0.0, 1)
    pace.refused(1.0, 0.0, {"retry-after": "5"}, 0.5)
    pace.end()
    assert pace.wait_s(1.0) == 5.0 or pace.wait_s(1.0) == float("inf")
    for _ in range(7):  # they went before it was known
        pace.refused(1.1, 0.0, {"retry-after": "5"}, 0.5)
        pace.end()
    assert (pace.n_refused, pace.hold_s) == (1, 6.0)
    assert pace.most_open == float("inf")  # it says when, and not how many
    for _ in range(8):
        pace.begin(6.0, 1)
    pace.refused(6.1, 6.0, {}, 0.5)
    assert (pace.n_refused, pace.most_open) == (2, 4)
    pace.answered(6.2, {}, None, 1)
    assert pace.n_refused == 0


def test_a_refusal_that_one_worker_hears_holds_the_others(tmp_path: Path) -> None:
    first, second = (ServerPace(file=tmp_path / "pace") for _ in range(2))
    for pace in (first, second):
        with pace.together():
            pace.begin(0.0, 1)
    with first.together():
        first.refused(1.0, 0.0, {"retry-after": "5"}, 0.5)
    with second.together():
        assert second.wait_s(1.0) == 5.0
        second.refused(1.1, 0.0, {"retry-after": "5"}, 0.5)  # it went before
    assert (second.n_refused, second.hold_s, second.n_open) == (1, 6.0, 1)
    (tmp_path / "pace").write_bytes(b"half a state")
    with second.together():
        assert second.hold_s == 6.0


def test_what_the_server_says_is_left_holds_all() -> None:
    pace = ServerPace()
    pace.begin(0.0, 1)
    told = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1.5s"}
    pace.answered(2.0, told, 10, 1)
    assert pace.wait_s(2.0) == 1.5
    pace = ServerPace()
    pace.begin(0.0, 1)
    told = {"x-ratelimit-remaining-tokens": "9", "x-ratelimit-reset-tokens": "20ms"}
    pace.answered(2.0, told, 10, 1)
    assert pace.wait_s(2.0) == pytest.approx(0.02)


def test_a_worker_that_was_stopped_with_the_file_holds_up_no_other(tmp_path):
    """The other holds the lock as a stopped process does: for ever."""
    pace = ServerPace(60.0, file=tmp_path / "pace")
    with pace.together():
        pace.begin(0.0, 0)
    with open(tmp_path / "pace", "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pace.together():
            assert pace.wait_s(0.0) == 1.0
            pace.begin(1.0, 0)
            assert pace.wait_s(1.0) == 1.0
