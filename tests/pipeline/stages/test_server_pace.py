"""When requests may go to a server, by the test's clock. The oracle is the server's count of a minute."""

import heapq
import random

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


SPANS = {"12": 12.0, "0.5": 0.5, "6m0s": 360.0, "20ms": 0.02, "1h2m3.5s": 3723.5}
NO_SPANS = ("", None, "Wed, 21 Oct 2015 07:28:00 GMT", "-3", "nan", "1e400", "5s!", "9" * 50)


@pytest.mark.parametrize(("text", "seconds"), [*SPANS.items(), *((one, None) for one in NO_SPANS)])
def test_spans_of_time_are_read_as_servers_write_them(text: str | None, seconds: float | None) -> None:
    assert seconds_of(text) == seconds


@given(st.integers(0, 2**32), st.integers(1, 40), st.floats(5, 300), st.none() | st.floats(200, 5000))
def test_no_minute_has_more_than_its_limits_and_no_time_is_lost(
    seed: int, n_at_once: int, per_minute: float, tokens_per_minute: float | None
) -> None:
    rng = random.Random(seed)
    pace, now, went = ServerPace(per_minute, tokens_per_minute), 0.0, []
    under_way: list[tuple[float, int, float]] = []
    for _ in range(60):
        while len(under_way) >= n_at_once or pace.wait_s(now) > 0:
            if under_way and (len(under_way) >= n_at_once or under_way[0][0] <= now + pace.wait_s(now)):
                now, took, reckoned = heapq.heappop(under_way)
                pace.answered(now, {}, took, reckoned)
                pace.end()
            else:
                now += pace.wait_s(now) + 1e-9
        took = rng.randint(40, 60)
        went.append((now, took))
        heapq.heappush(under_way, (now + rng.random(), took, pace.begin(now, 50)))
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
