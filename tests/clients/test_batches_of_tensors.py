"""Batches that are dicts or tuples of tensors, losses of the user's own, and models of transformers."""

import pickle

import pytest
import torch
import torch.nn.functional as F
from clients.linear_clients import tasks_of
from torch import nn

from evenload.clients import SGD, Recipe, Rows, Strategy, evaluate, train
from evenload.clients.spread.client_worker import ClientWorker
from evenload.clients.spread.equivalence_check import difference
from evenload.clients.spread.remote import RemoteClientWorker, SentModel, received, sent_recipe, sent_task
from evenload.clients.step.dropout import with_keyed_dropout
from evenload.devices import CurrentDevice
from evenload.errors import ConfigError

WORDS, LENGTH = 13, 6


class Classifier(nn.Module):
    """Embedded words, their masked mean, a layer."""

    def __init__(self):
        super().__init__()
        self.embed, self.drop, self.out = nn.Embedding(WORDS, 8), nn.Dropout(0.2), nn.Linear(8, 3)

    def forward(self, ids, mask):
        h = self.drop(self.embed(ids)) * mask[..., None]
        return self.out(h.sum(1) / mask.sum(1, keepdim=True))


def batch(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, LENGTH + 1, (n, 1), generator=g)
    return {
        "ids": torch.randint(0, WORDS, (n, LENGTH), generator=g),
        "mask": (torch.arange(LENGTH) < lengths).double(),
        "labels": torch.randint(0, 3, (n,), generator=g),
    }


class Examples(torch.utils.data.Dataset):
    """Map-style examples as dicts."""

    def __init__(self, whole):
        self.whole = whole

    def __len__(self):
        return len(self.whole["labels"])

    def __getitem__(self, i):
        return {name: t[i] for name, t in self.whole.items()}


def per_row(model, batch):
    outputs = model(batch["ids"], batch["mask"])
    return F.cross_entropy(outputs, batch["labels"], reduction="none")


def one_number(model, batch):
    return per_row(model, batch).mean()


def of_a_tuple(model, batch):
    ids, mask, labels = batch
    return F.cross_entropy(model(ids, mask), labels, reduction="none")


def pairs(wholes):
    return [({n: t for n, t in w.items() if n != "labels"}, w["labels"]) for w in wholes]


WAYS = {
    "a dict of keywords and labels": (pairs, {}),
    "a tuple of arguments and labels": (
        lambda wholes: [((w["ids"], w["mask"].numpy()), w["labels"].numpy()) for w in wholes],
        {},
    ),
    "a dict": (lambda wholes: wholes, {"objective": per_row}),
    "three tensors": (lambda wholes: [tuple(w.values()) for w in wholes], {"objective": of_a_tuple}),
    "examples as dicts": (lambda wholes: [Examples(w) for w in wholes], {"objective": per_row}),
    "a TensorDataset": (
        lambda wholes: [torch.utils.data.TensorDataset(*w.values()) for w in wholes],
        {"objective": of_a_tuple},
    ),
    "loaded when due": (lambda wholes: [lambda w=w: w for w in wholes], {"objective": per_row}),
}


def run(data, strategy, **kwargs):
    recipe = Recipe(optimizer=SGD(0.1, momentum=0.9), batch_size=4, epochs=2, **kwargs)
    return train(lambda: Classifier().double(), data, recipe, strategy=strategy, seed=3)


def worst(a, b):
    return max(difference(x.state, y.state) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("way", WAYS)
def test_every_form_of_a_batch_is_fused_with_the_serial_result(way):
    make, kwargs = WAYS[way]
    wholes = [batch(n, seed=n) for n in (6, 9, 3)]
    plain, fused = run(pairs(wholes), "serial"), run(make(wholes), "fused:2", **kwargs)
    assert fused.plan.strategy.inner == "fused", fused.plan.explain()
    assert worst(plain, fused) <= 1e-12


def test_batches_travel_to_processes():
    for data, recipe in (([batch(6)], Recipe(objective=per_row)), (pairs([batch(9)]), Recipe())):
        net = with_keyed_dropout(Classifier())
        (task,) = tasks_of(net, data, recipe)
        device = CurrentDevice("cpu:0", "cpu", 1)
        worker = RemoteClientWorker(device, model=SentModel(net), strategy=Strategy(), traits=None, threads=1)
        ((there,), _) = worker(pickle.loads(pickle.dumps([sent_task(task, sent_recipe(recipe))])))
        here = ClientWorker(net).train_one(task)
        assert difference(here.state, received(there).state) == 0


def test_one_number_for_a_batch_is_fused_where_batches_are_full():
    full = [batch(8, seed=s) for s in range(3)]
    fused = run(full, "fused:3", objective=one_number)
    assert fused.plan.strategy.inner == "fused"
    assert worst(run(full, "serial", objective=one_number), fused) <= 1e-12
    ragged = run([*full, batch(7)], "fused:3", objective=one_number)
    assert ragged.plan.strategy.inner == "eager"
    assert "one number for a batch" in ragged.plan.why


def test_rows_of_shared_tensors_are_trained_without_copies():
    whole = batch(20)
    rows = [torch.arange(0, 20, 2).numpy(), torch.arange(1, 20, 3).numpy()]
    shared = [Rows(whole, torch.zeros(20, 0), r) for r in rows]
    own = [{name: t[torch.from_numpy(r)] for name, t in whole.items()} for r in rows]
    assert worst(run(own, "serial", objective=per_row), run(shared, "fused:2", objective=per_row)) <= 1e-12


@pytest.mark.parametrize(
    ("data", "kwargs", "said"),
    [
        (lambda: batch(4), {}, "no targets beside them"),
        (lambda: {**batch(4), "mask": torch.ones(3, LENGTH)}, {"objective": per_row}, "of 3 and of 4 rows"),
        (lambda: batch(4), {"objective": lambda model, b: torch.ones(2)}, r"shape \(2,\) for 4 rows"),
        (lambda: batch(4), {"objective": lambda model, b: 1.0}, "returned a float"),
        (lambda: [{"ids": torch.ones(2)}, {"ids": torch.ones(3)}], {"objective": per_row}, "shapes"),
        (lambda: {"ids": "text"}, {"objective": per_row}, "dataset is a dict|KeyError|0"),
    ],
)
def test_what_cannot_be_a_batch_is_named(data, kwargs, said):
    found = train(
        lambda: Classifier().double(), [data()], Recipe(**kwargs), strategy="serial", on_error="return"
    )
    with pytest.raises((ConfigError, KeyError), match=said):
        raise found[0].error


def test_a_state_is_evaluated_on_dicts():
    whole = batch(9)
    found = evaluate(Classifier().double(), Classifier().double().state_dict(), pairs([whole])[0], Recipe())
    assert set(found) == {"loss", "accuracy"}
    own = evaluate(
        Classifier().double(), Classifier().double().state_dict(), whole, Recipe(objective=per_row)
    )
    assert set(own) == {"loss"}


def test_models_of_transformers_are_fused():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.BertConfig(vocab_size=WORDS, max_position_embeddings=8, num_labels=3, **sizes)

    def per_text(model, b):
        logits = model(input_ids=b["ids"], attention_mask=b["mask"][:, None, None].bool()).logits
        return F.cross_entropy(logits, b["labels"], reduction="none")

    recipe = Recipe(optimizer=SGD(0.05), objective=per_text, batch_size=4, steps=2)
    wholes = [batch(n, seed=n) for n in (6, 4)]
    make = lambda: transformers.BertForSequenceClassification(config).double()  # noqa: E731
    runs = [train(make, wholes, recipe, strategy=s, seed=1) for s in ("serial", "fused:2")]
    assert runs[1].plan.strategy.inner == "fused", runs[1].plan.explain()
    assert worst(*runs) <= 1e-12
