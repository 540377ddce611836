"""When a worker that died is replaced, and when that is no use."""

from evenload.executor.supervisor.back_off import BackOff, saying


def test_pauses_double_until_it_is_given_up() -> None:
    back_off = BackOff()
    pauses = []
    for _ in range(2):
        assert not back_off.died("was killed", 0.0)
        assert not back_off.why_given_up
        pauses.append(back_off.not_before_s)
    assert pauses[1] == 2 * pauses[0] > 0
    back_off.died("was killed", 0.0, said=", saying: no")
    assert back_off.why_given_up == "its worker was killed 3 times before it had a result, saying: no"


def test_a_result_makes_all_well_again() -> None:
    back_off = BackOff()
    for _ in range(10):
        back_off.died("was killed", 0.0)
        back_off.died("was killed", 0.0)
        back_off.forgive()
    assert back_off == BackOff()


def test_what_ends_two_workers_while_it_is_built_is_to_blame() -> None:
    back_off = BackOff()
    assert not back_off.died("was killed", 0.0, building="a")
    assert back_off.died("was killed", 0.0, building="a")
    assert back_off == BackOff()
    assert not back_off.died("was killed", 0.0, building="a")
    assert not back_off.died("was killed", 0.0, building="b")
    assert not back_off.why_given_up


def test_last_words_are_their_last_line() -> None:
    assert saying("one\ntwo\n\n") == ", saying: two"
    assert saying(" \n") == ""
