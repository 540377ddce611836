"""Datasets are what a DataLoader gives of them. The oracle is a plain loop over that DataLoader."""

import random

import numpy as np
import pytest
import torch
from clients.oracle import train_plainly
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from evenload.clients import SGD, Recipe, client_seed, ensemble, evaluate, train
from evenload.clients.load.datasets import as_rows
from evenload.errors import ConfigError, TaskError

DRAWS = torch.Generator().manual_seed(0)
X = torch.randn(11, 5, generator=DRAWS, dtype=torch.float64)
Y = torch.randint(0, 3, (11,), generator=DRAWS)
RECIPE = Recipe(optimizer=SGD(0.1), batch_size=4, epochs=3, shuffle=False)


def make():
    torch.manual_seed(0)
    return nn.Linear(5, 3).double()


def plainly(dataset, client=0, **loop):
    model = make()
    seeds = client_seed(1, client, of="rows"), client_seed(1, client)
    sgd = lambda model: torch.optim.SGD(model.parameters(), lr=0.1)  # noqa: E731
    train_plainly(model, dataset, nn.functional.cross_entropy, sgd, epochs=3, seeds=seeds, **loop)
    return model.weight.detach()


class Transformed(Dataset):
    """The wrapper of many answers and tutorials; ``tensors`` is a name that its author chose."""

    def __init__(self, tensors=(X, Y), transform=lambda x: (x - 5) / 3):
        self.tensors, self.transform = tensors, transform

    def __len__(self):
        return len(self.tensors[0])

    def __getitem__(self, i):
        return self.transform(self.tensors[0][i]), self.tensors[1][i]


class Flipped(Dataset):
    def __init__(self, inner):
        self.inner, self.tensors = inner, inner.tensors

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, i):
        x, y = self.inner[i]
        return x, (y + 1) % 3


class Counting(Transformed):
    """A dataset that draws in ways of its own, and counts how often it is asked."""

    def __init__(self, draw):
        super().__init__()
        self.draw, self.n_calls = draw, 0

    def __getitem__(self, i):
        self.n_calls += 1
        x, y = super().__getitem__(i)
        return x + self.draw(), y


RANDOM = {
    "random": lambda: Counting(random.random),
    "numpy": lambda: Counting(np.random.rand),
    "torch": lambda: Counting(lambda: torch.rand(())),
    "rarely": lambda: Counting(lambda: 9.0 if random.random() < 0.02 else 0.0),
    "a generator of its own": lambda: Counting(random.Random(3).random),
    "numpy's generator of its own": lambda: Counting(np.random.default_rng(3).random),
}


def test_evaluation_and_members_of_an_ensemble_see_the_same_rows():
    model, dataset = make(), Flipped(TensorDataset(X, Y))
    loss = nn.functional.cross_entropy(model(X), (Y + 1) % 3).item()
    assert evaluate(model, model.state_dict(), dataset, RECIPE)["loss"] == pytest.approx(loss, abs=1e-12)
    counting = Counting(random.random)
    ensemble(make, counting, 2, recipe=RECIPE, bootstrap=True, strategy="serial")
    assert counting.n_calls == 2 * 3 * len(X)


@pytest.mark.parametrize("strategy", ["serial", "fused:2"])
@pytest.mark.parametrize("name", RANDOM)
def test_examples_that_differ_are_read_again_each_epoch(name, strategy):
    datasets = RANDOM[name](), RANDOM[name]()
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    run = train(make, datasets, RECIPE, strategy=strategy, seed=1)
    assert before[0] == random.getstate()
    assert before[1] == np.random.get_state()[1].tolist()
    assert torch.equal(before[2], torch.get_rng_state())
    for client, result in enumerate(run):
        there = RANDOM[name]()
        assert torch.allclose(result.state["weight"], plainly(there, client), rtol=0, atol=1e-13)
        assert datasets[client].n_calls == there.n_calls
        assert result.n_rows == len(X)
    assert "2 of 2 datasets were read again in each epoch" in run.plan.explain()


def test_a_fixed_dataset_is_read_twice_for_all_epochs_and_clients():
    dataset = Counting(lambda: 0.0)
    train(make, [dataset] * 3, RECIPE, strategy="serial")
    assert dataset.n_calls == 2 * len(X)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["torch", "rarely"])
def test_the_workers_of_a_data_loader_read_if_it_has_some(name):
    dataset = RANDOM[name]()
    loader = DataLoader(dataset, batch_size=4, num_workers=1)
    run = train(make, [loader], RECIPE, strategy="serial", seed=1)
    expected = plainly(RANDOM[name](), loader={"num_workers": 1})
    assert torch.allclose(run[0].state["weight"], expected, rtol=0, atol=1e-13)
    assert dataset.n_calls <= len(X)  # in this process, to see whether it draws


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_size": 5}, "Recipe(batch_size=5, shuffle=False, drop_last=False)"),
        ({"batch_size": 4, "shuffle": True}, "Recipe(batch_size=4, shuffle=True, drop_last=False)"),
        ({"batch_size": 4, "collate_fn": list}, "collate_fn"),
        ({"batch_size": 4, "sampler": [0, 0, 1]}, "Rows(x, y, np.array(list(sampler)))"),
    ],
)
def test_a_loader_of_other_batches_is_refused(options, said):
    with pytest.raises(TaskError, match="DataLoader") as refused:
        train(make, [DataLoader(TensorDataset(X, Y), **options)], RECIPE, strategy="serial")
    assert said in str(refused.value.__cause__)


class Texts(Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, i):
        return "a text", 1


class Picture:
    """As PIL's pictures are: torch makes no tensor of them."""

    convert = getpixel = None


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        (Texts(), "tokenizer"),
        ([(Picture(), 1)] * 3, "np.array"),
        ((np.array(["a", "b"]), np.array([0, 1])), "tensors, arrays or numbers"),
        ({"x": ["a"], "y": ["b"]}, "a dict of tensors"),
        (iter([1]), "a dict of tensors"),
    ],
)
def test_what_is_no_number_is_refused_with_what_to_do(dataset, said):
    with pytest.raises(ConfigError) as refused:
        as_rows(dataset, torch.float32)
    assert said in str(refused.value)


def test_a_frame_is_refused_with_what_to_type():
    frame = pytest.importorskip("pandas").DataFrame({"a": [1.0], "b": [0]})
    with pytest.raises(ConfigError, match="to_numpy"):
        as_rows(frame, torch.float32)


class Rows(Dataset):
    """As many examples as it is told to have; ``change`` gets the number and how many were read before."""

    def __init__(self, n, change=lambda x, i, n_reads: x):
        self.x = torch.randn(n, 5, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
        self.change, self.n_reads = change, 0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        self.n_reads += 1
        return self.change(self.x[i], i, self.n_reads), i % 3


@pytest.mark.timeout(1200)
@settings(max_examples=examples(30), deadline=None)
@given(st.integers(2, 90), st.integers(1, 100), st.integers(0, 199), st.sampled_from(["serial", "fused:2"]))
def test_whatever_example_changes_in_two_epochs_is_seen(n, batch_size, hundredths, strategy):
    """The oracle is a plain loop; from some time on, in the first two epochs, other rows are read."""
    when = hundredths * n // 100
    make_dataset = lambda: Rows(n, lambda x, i, n_reads: x * (1 + (n_reads > when)))  # noqa: E731
    recipe = Recipe(optimizer=SGD(0.1), batch_size=batch_size, epochs=3, shuffle=False)
    run = train(make, [make_dataset()], recipe, strategy=strategy, seed=1)
    truth = plainly(make_dataset(), batch_size=batch_size)
    assert torch.allclose(run[0].state["weight"], truth, rtol=0, atol=1e-12 * float(truth.abs().max() + 1))


def test_floats_of_python_are_not_rounded():
    """The oracle is torch's own collation, which makes float64 of them."""
    pairs = [(x.numpy(), float(x[0]) / 3) for x in X]
    (x, y) = next(iter(DataLoader(pairs, batch_size=len(X))))
    read = as_rows(pairs, torch.float64)
    assert torch.equal(read.x, x)
    assert torch.equal(read.y, y)
