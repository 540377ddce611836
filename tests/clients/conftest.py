"""Fixtures that tests of clients share: tasks of a linear model, and whether torch can compile here."""

import pytest
import torch
from clients.linear_clients import tasks_of as loaded_tasks
from torch import nn

from evenload.clients import SGD, Recipe
from evenload.clients.step.dropout import with_keyed_dropout
from evenload.clients.tune.engine_checks import why_not_compiled


@pytest.fixture(scope="session")
def compiler():
    """Skip a test of what torch's compiler makes where it can make nothing."""
    if missing := why_not_compiled():
        pytest.skip(missing)


@pytest.fixture(scope="module", autouse=True)
def workers_have_torch(forked_servers):
    """Workers of executors do not import it anew, for seconds; how they start is tested elsewhere."""


@pytest.fixture(autouse=True)
def one_intra_op_thread():
    """The machine that runs the tests shares its cores; small steps are faster on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_tasks(n, model=None):
    model = model or with_keyed_dropout(nn.Linear(3, 2))
    g = torch.Generator().manual_seed(0)
    data = [(torch.randn(8, 3, generator=g), torch.randint(0, 2, (8,), generator=g)) for _ in range(n)]
    return model, loaded_tasks(model, data, Recipe(optimizer=SGD(0.1, momentum=0.9), batch_size=4, steps=10))


@pytest.fixture(scope="session")
def tasks_of():
    """Makes a model and tasks of so many clients, each of ten steps."""
    return make_tasks


def make_clients(n, width=3):
    g = torch.Generator().manual_seed(n)
    return [(torch.randn(8, width, generator=g), torch.randint(0, 2, (8,), generator=g)) for _ in range(n)]


@pytest.fixture
def linear_clients():
    """Makes so many clients' examples for a linear model."""
    return make_clients
