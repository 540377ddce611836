"""Dropout by a kernel: the very places that the plain formula keeps, for one client and for many at once."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import vmap

from evenload.clients.step.dropout import kept_of, uniform_of
from evenload.clients.step.image_kernels.operations import kept

pytest.importorskip("llvmlite")

WORDS = st.integers(-(2**63), 2**63 - 1)


@given(
    keys=st.lists(WORDS, min_size=1, max_size=4),
    salt=st.integers(0, 2**42),
    n=st.integers(0, 70),
    p=st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.25, 0.5, 1.0, 2**-53, 1 - 2**-53])),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_the_places_are_those_of_the_formula(keys, salt, n, p, dtype):
    many = torch.tensor(keys)
    slow = torch.stack([(uniform_of(key, salt, [n]) >= p).to(dtype) for key in many])
    assert torch.equal(vmap(lambda key: kept(key, salt, n, p, dtype))(many), slow)
    assert torch.equal(kept(many[0], salt, n, p, dtype), slow[0])


def test_what_the_kernel_does_not_serve_is_done_by_the_formula():
    key = torch.tensor(5)
    assert kept(key, 1, 9, 0.5, torch.bfloat16) is None
    found = kept_of(key, 1, [3, 3], 0.5, torch.bfloat16)
    assert torch.equal(found, kept_of(key, 1, [3, 3], 0.5, torch.float32).to(torch.bfloat16))


def test_the_operation_says_its_shape_before_it_runs():
    from torch.library import opcheck

    arguments = (torch.tensor([3, 4]), 7, 11, 2**52, torch.float64)
    opcheck(torch.ops.evenload.kept.default, arguments, test_utils=("test_schema", "test_faketensor"))
