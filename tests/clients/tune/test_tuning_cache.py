"""A file of measured plans that is damaged, or cannot be written."""

import json

import pytest
from torch import nn

from evenload.clients import SGD, Recipe, train

RECIPE = Recipe(optimizer=SGD(0.1, momentum=0.9), batch_size=4, steps=10)


@pytest.mark.parametrize("entry", [5, {}, {"strategy": "fused-by-hand:3", "why": "", "probes": []}])
def test_a_damaged_entry_is_measured_anew(tmp_path, entry, linear_clients):
    cache = tmp_path / "tuning.json"
    train(nn.Linear(3, 2), linear_clients(4), RECIPE, strategy="measured", cache=cache)
    page = json.loads(cache.read_text())
    cache.write_text(json.dumps(dict.fromkeys(page, entry)))
    assert (
        "before"
        not in train(nn.Linear(3, 2), linear_clients(4), RECIPE, strategy="measured", cache=cache).plan.why
    )
    assert json.loads(cache.read_text()).keys() == page.keys()
    assert (
        "before"
        in train(nn.Linear(3, 2), linear_clients(4), RECIPE, strategy="measured", cache=cache).plan.why
    )


def test_training_goes_on_where_the_cache_cannot_be_written(tmp_path, caplog, linear_clients):
    cache = tmp_path / "tuning.json"
    cache.mkdir()
    run = train(nn.Linear(3, 2), linear_clients(4), RECIPE, strategy="measured", cache=cache)
    assert [r.status for r in run] == ["ok"] * 4
    assert "measured anew next time" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["tuning.json"]
