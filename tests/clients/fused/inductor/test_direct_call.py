"""The compiler's inner function is called directly only where it does what the wrapped one does."""

import pytest
import torch

from evenload.clients.fused.inductor import direct_call
from evenload.clients.fused.inductor.compiling import compile_directly


def doubled(t):
    t.add_(t)
    return [t.sum()]


@pytest.mark.parametrize(
    ("inner", "is_taken"),
    [
        (lambda t: [t.add_(t).sum()], True),
        (lambda t: [(2 * t).sum()], False),  # leaves its argument as it was
        (lambda t: [t.add_(t).sum() + 1], False),
        (lambda t: [t.add_(t).sum(), t], False),
        (lambda t: 1 / 0, False),
        (None, False),
    ],
)
def test_the_inner_function_is_taken_only_where_it_does_the_same(inner, is_taken, monkeypatch):
    monkeypatch.setattr(direct_call, "compile_both", lambda graph, example, options: (doubled, inner))
    example = torch.ones(3)
    run = compile_directly(None, [example], None)
    assert run is (inner if is_taken else doubled)
    assert example.tolist() == [1, 1, 1]
    assert run(example)[0] == 6
    assert example.tolist() == [2, 2, 2]
