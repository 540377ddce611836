"""Items come when they are wanted, once, and what goes wrong in reading is kept for later."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.errors import ConfigError
from evenload.executor.decide.source import IteratorSource, ListSource, make_source, rough_bytes
from evenload.executor.loop.cost_history import size_bucket


@given(st.integers(0, 40), st.lists(st.integers(0, 12), max_size=12))
def test_reads_as_far_as_wanted_and_no_further(n: int, wants: list[int]) -> None:
    read = []

    def items():
        for i in range(n):
            read.append(i)
            yield i

    source, want = IteratorSource(items()), 0
    for more in wants:
        want += more
        source.want(want)
        assert len(read) == source.n_ready == min(want, n)
        assert source.take(range(source.n_ready)) == list(range(source.n_ready))
    assert source.is_ended == (want > n)


@given(st.lists(st.integers(1, 200), max_size=40), st.randoms(use_true_random=False))
def test_forgets_what_is_released_and_nothing_else(lengths: list[int], rng) -> None:
    source, n = IteratorSource(iter(range(10_000)), cost=float), 0
    open_: list[range] = []
    for length in lengths:
        source.want(n + length)
        open_.append(range(n, n + length))
        n += length
        if rng.random() < 0.7:
            gone = open_.pop(rng.randrange(len(open_)))
            source.release(gone if rng.random() < 0.5 else tuple(gone))
        for items in open_:
            assert source.take(items) == list(items)
            assert source.take(tuple(items)[::-1]) == list(items)[::-1]
            assert source.cost_of(items) == float(sum(items))
    if not open_:
        assert len(source._buffer) <= 2048


def test_size_hints_must_fit() -> None:
    with pytest.raises(ConfigError, match="2 size hints for 3 items"):
        make_source([1, 2, 3], [1.0, 2.0], None)
    assert ListSource(["a", "bcd"], len).costs(0, 2) == [1, 3]
    short = IteratorSource(iter([1, 2, 3]), [1.0, 2.0])
    short.want(3)
    assert short.n_ready == 2
    assert isinstance(short.error, ConfigError)


@pytest.mark.parametrize("hint", [-1, float("nan"), float("inf"), "a", "2", None, 10**400])
def test_a_size_hint_that_is_no_size_is_refused_before_anything_runs(hint: object) -> None:
    for cost in ([1, hint], lambda item: hint if item else 0.0):
        with pytest.raises(ConfigError, match="size hint of item"):
            make_source([0, 1], cost, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("hint", [-1, float("nan"), "a", b"2"])
def test_a_streamed_size_hint_that_is_no_size_ends_the_reading(hint: object) -> None:
    source = IteratorSource(iter([3, 4, 5]), lambda item: hint if item == 5 else item)  # type: ignore[arg-type]
    source.want(9)
    assert source.n_ready == 2
    assert source.is_ended
    assert isinstance(source.error, ConfigError)
    assert "item 2" in str(source.error)


def lying(answers: dict[str, object]) -> object:
    """An object of whose class some methods and properties answer so; an exception is raised."""

    def member(answer: object) -> object:
        def tell(self: object, *_: object) -> object:
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return tell

    members = {
        name: member(answer) if name.startswith("__") else property(member(answer))  # type: ignore[arg-type]
        for name, answer in answers.items()
    }
    return type("Lying", (), members)()


ANSWERS = st.sampled_from(
    [-1, 1 << 80, 7.5, "many", None, math.nan, True, SystemExit(3), ValueError(), 1 << 62]
)


@given(st.dictionaries(st.sampled_from(["nbytes", "shape", "size", "__len__", "__getattr__"]), ANSWERS))
def test_items_that_lie_about_their_size_are_as_good_as_any(answers: dict[str, object]) -> None:
    item = lying(answers)
    for value in (item, [item, b"abc"], {"a": item}):
        assert 0 <= rough_bytes(value) < 1 << 62
        assert size_bucket(value, None, None).startswith("0 ")


@given(ANSWERS)
def test_a_length_that_cannot_be_is_no_length(answer: object) -> None:
    class Loader:
        def __iter__(self):
            return iter("abc")

        def __len__(self):
            if isinstance(answer, Exception):
                raise answer
            return 2.5 if isinstance(answer, BaseException) else answer

    source = make_source(Loader(), None, None)
    source.want(5)
    assert source.take(range(3)) == ["a", "b", "c"]
