"""Scikit-learn's digits: 1797 pictures of 8 x 8, whole or dealt to clients by Dirichlet(0.3)."""

import torch
from sklearn.datasets import load_digits
from torch import nn

from evenload.clients.partition import dirichlet, split


def model():
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def halves():
    """Training and test examples, every fifth row for the test."""
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    is_test = torch.arange(len(y)) % 5 == 0
    return (x[~is_test], y[~is_test]), (x[is_test], y[is_test])


def clients():
    (x, y), _ = halves()
    return split(x, y, dirichlet(y.numpy(), 100, 0.3, seed=0, least=1))


def test():
    return halves()[1]
