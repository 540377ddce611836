"""What counts as changed in a model: what is in its attributes, and not the order that a copy holds it in."""

from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from evenload.clients.step.module_state import ModuleState

names = st.text(max_size=6)


class Remembers(nn.Module):
    def __init__(self, words: set):
        super().__init__()
        self.linear = nn.Linear(1, 1)
        self.words = words
        self.nested = {"seen": [set(words)]}


@settings(max_examples=examples(40))
@given(st.lists(names, max_size=40), st.lists(names, max_size=40), names)
def test_a_set_is_what_it_holds(words: list[str], removed: list[str], more: str) -> None:
    held = {*words, *removed}
    held.difference_update(removed)  # the holes that are left make another order than a copy's
    model = Remembers(held)
    state = ModuleState(model)
    assert state.changed() is None
    model.nested["seen"][0].add(more)
    assert (state.changed() is None) == (more in held)
    state.restore()
    assert state.changed() is None
