"""Functions that other threads have called in a loop's thread: each once, also while the loop closes."""

from evenload.executor.supervisor.call_queue import CallQueue


def test_what_waits_is_called_in_its_order_and_wakes_the_loop() -> None:
    woken: list[None] = []
    said: list[str] = []
    calls = CallQueue(lambda: woken.append(None))
    calls.call(lambda: said.append("a"))
    calls.call(lambda: said.append("b"))
    assert (len(calls), len(woken), said) == (2, 2, [])
    calls.run_waiting()
    assert said == ["a", "b"]


def test_while_the_loop_closes_it_still_calls_and_then_the_caller_does() -> None:
    woken: list[None] = []
    said: list[str] = []
    calls = CallQueue(lambda: woken.append(None))
    assert calls.close()
    assert not calls.close()
    calls.call(lambda: calls.call(lambda: said.append("within")))
    assert not woken
    assert not said
    calls.run_last()
    assert said == ["within"]
    calls.call(lambda: said.append("after"))
    assert said == ["within", "after"]
