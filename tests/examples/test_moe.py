"""Redundant experts change who computes, not what is learnt."""

import sys

import numpy as np
import pytest
import torch
from loaded_programs import load

from evenload.moe import Planner, create_redundant_mapping


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """The layers are too small for more, and the command sets it for the whole process."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def example():
    return load("examples/moe/train.py")


@pytest.fixture(scope="module")
def courses(example):
    planner = Planner(
        create_redundant_mapping(example.N_EXPERTS, example.N_SLOTS), example.N_SLOTS, example.N_EXPERTS
    )
    return example.train(planner, 30, 256), example.train(None, 30, 256)


def test_losses_are_the_same_to_rounding(courses):
    (routed, _), (plain, _) = courses
    assert routed == pytest.approx(plain, rel=1e-12)
    assert np.mean(routed[-5:]) < 0.7 * routed[0]


def test_the_ranks_are_busier_evenly(courses):
    (_, even), (_, uneven) = courses
    assert np.mean(even) < 1.1 < 1.3 < np.mean(uneven)


def test_a_loss_that_differs_is_not_passed_over(example, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "--steps", "2", "--tokens", "64"])
    losses = iter(([5.0, 4.0], [5.0, 4.1]))
    monkeypatch.setattr(example, "train", lambda *_: (next(losses), [1.0, 1.0]))
    with pytest.raises(SystemExit, match="more than rounding"):
        example.main()
