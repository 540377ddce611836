"""Idioms of torch end as in a plain loop, or are refused by name. The oracle is ``oracle.train_plainly``.

It shares nothing with evenload: uncopied objects, a DataLoader, torch.optim, backward.
"""

import copy

import pytest
import torch
from clients import zoo
from clients.oracle import train_plainly
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from evenload.clients import SGD, Recipe, federate, train
from evenload.clients.algorithms import FedBuff

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of the old weight_norm


@pytest.mark.timeout(1200)
def test_each_idiom_is_the_plain_loops_or_refused_and_the_page_says_which():
    page, unequal = zoo.page()
    assert not unequal
    assert page == zoo.PAGE.read_text(), "PYTHONPATH=tests python tests/clients/zoo.py makes the page anew"


@pytest.mark.timeout(1200)
@settings(max_examples=examples(30), deadline=None)
@given(st.data())
def test_combinations_of_idioms_are_the_plain_loops_or_refused(data):
    chosen = {kind: data.draw(st.sampled_from(idioms), label=kind) for kind, idioms in zoo.KINDS.items()}
    strategy = data.draw(st.sampled_from(["serial", "fused:2", "rules:2", "threads*2/fused:1"]))
    found = zoo.outcome(strategy, **chosen)
    # Steps so large that the loss goes up, as early stopping is to see it, make a rounding larger, too.
    allowed = zoo.ALLOWED * (1e4 if chosen["loop"].name == "early stopping" else 1.0)
    assert found.said if found.distance is None else found.distance <= allowed, found


def test_a_compiled_model_is_the_plain_loops():
    found = zoo.outcome("serial", model=zoo.COMPILED)
    assert found.said if found.distance is None else found.distance <= zoo.ALLOWED


def test_hooks_travel_to_other_processes():
    model = next(idiom for idiom in zoo.MODELS if idiom.name == "gradients masked by a hook")
    found = zoo.outcome("processes*1/eager", model=model)
    assert found.distance <= zoo.ALLOWED


def test_rare_draws_of_one_client_do_not_depend_on_others():
    model = next(idiom for idiom in zoo.MODELS if idiom.name == "draws that no first step shows")
    run = [
        train(zoo.seeded_by(model), [zoo.tensors(n) for n in sizes], Recipe(), strategy="serial", ids=ids)
        for sizes, ids in (((200, 100), (0, 1)), ((100,), (1,)))
    ]
    assert torch.equal(run[0][1].state["a.weight"], run[1][0].state["a.weight"])


def test_fedbuff_with_one_client_is_a_plain_loop_batch_statistics_included():
    model = next(idiom for idiom in zoo.MODELS if idiom.name == "BatchNorm").build()
    plain, data = copy.deepcopy(model), zoo.DATASETS[0].build(11)
    train_plainly(plain, data, nn.functional.cross_entropy, zoo.sgd)
    recipe = Recipe(optimizer=SGD(0.1, momentum=0.9), batch_size=4, epochs=2, shuffle=False)
    found = federate(model, [data], recipe, FedBuff(buffer=1, concurrency=1), rounds=1, strategy="serial")
    assert zoo.distance(found.state, plain.state_dict()) <= zoo.ALLOWED
