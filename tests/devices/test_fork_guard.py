"""Objects that a forked child cannot use, as the child ends."""

import pytest

from evenload.devices import fork_guard


def test_what_outlives_the_modules_of_a_child_is_not_used_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter that ends sets the names of its modules to None, and lets go of results after that."""
    guard = fork_guard.ForkGuard("this executor", "make one in the child")
    assert not guard.is_child
    monkeypatch.setattr(fork_guard, "os", None)
    assert guard.is_child
