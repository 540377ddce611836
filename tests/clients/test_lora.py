"""Adapters of one frozen base: each ends as it does alone, fused, serially and in a loop of plain torch."""

import contextlib
import copy
import json
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from evenload.clients import SGD, AdamW, LoRA, Recipe, adapters, save_adapter
from evenload.clients.lora import _start, adapted_layers, with_adapters
from evenload.clients.spread.equivalence_check import difference
from evenload.errors import ConfigError, TaskError

RECIPE = Recipe(optimizer=SGD(0.2, momentum=0.9), batch_size=4, epochs=2)


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(5, 8), nn.LayerNorm(8), nn.Linear(8, 8, bias=False)
        self.score = nn.Linear(8, 3)

    def forward(self, x):
        return self.score(torch.tanh(self.second(self.norm(torch.tanh(self.first(x))))))


@pytest.fixture
def base():
    torch.manual_seed(0)
    return Base()


def clients(sizes=(6, 9, 4)):
    g = torch.Generator().manual_seed(1)
    return [(torch.randn(n, 5, generator=g), torch.randint(0, 3, (n,), generator=g)) for n in sizes]


def worst(a, b):
    return max(difference(x.weights, y.weights) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(
    "form", [LoRA(rank=2), LoRA(rank=3, alpha=6, targets="first", dropout=0.2, also="score.*")]
)
def test_an_adapter_is_what_it_is_alone_and_the_base_stays(base, form):
    before = copy.deepcopy(base.state_dict())
    fused, serial = (
        adapters(base, clients(), form, recipe=RECIPE, strategy=s) for s in ("fused:3", "serial")
    )
    assert fused.plans[form].strategy.inner == "fused", fused.explain()
    assert worst(fused, serial) <= 1e-6
    assert difference(fused[0].weights, fused[1].weights) > 1e-3
    assert difference(before, base.state_dict()) == 0
    assert all(p.requires_grad for p in base.parameters())
    own = {name.rpartition(".")[2] for name in fused[0].weights}
    assert own == ({"lora_A", "lora_B", "weight", "bias"} if form.also else {"lora_A", "lora_B"})


def test_an_adapter_is_what_a_loop_of_plain_torch_makes_of_it(base):
    form, data = LoRA(rank=2, alpha=1.0, targets=("second",)), clients()
    recipe = Recipe(optimizer=SGD(0.2), batch_size=16, epochs=3, shuffle=False)
    found = adapters(base, data, form, recipe=recipe, strategy="fused:3", seed=5)
    for place, (x, y) in enumerate(data):
        start = _start(with_adapters(base, form), form, 5, place)
        a, b = (start[f"second.lora_{part}"].clone().requires_grad_() for part in "AB")
        for _ in range(3):
            h = base.norm(torch.tanh(base.first(x)))
            out = base.score(torch.tanh(base.second(h) + 0.5 * h @ a.T @ b.T))
            grads = torch.autograd.grad(F.cross_entropy(out, y), (a, b))
            with torch.no_grad():
                for p, g in zip((a, b), grads, strict=True):
                    p -= 0.2 * g
        assert torch.allclose(found[place].weights["second.lora_A"], a, atol=1e-6)
        assert torch.allclose(found[place].weights["second.lora_B"], b, atol=1e-6)


def test_forms_and_recipes_may_differ(base):
    forms = [LoRA(rank=2), LoRA(rank=4), LoRA(rank=2)]
    recipes = [Recipe(optimizer=SGD(0.1 * (i + 1)), batch_size=4, epochs=i + 1) for i in range(3)]
    found = adapters(base, clients(), forms, recipe=recipes, strategy="fused:3")
    assert [a.weights["first.lora_A"].shape[0] for a in found] == [2, 4, 2]
    assert len(found.plans) == 2
    alone = adapters(base, clients(), forms, recipe=recipes, strategy="serial")
    assert worst(alone, found) <= 1e-6


def test_files_are_those_of_peft(base, tmp_path):
    pytest.importorskip("safetensors")
    from safetensors.torch import load_file

    found = adapters(base, clients(), LoRA(rank=2, alpha=4, targets="first", also="score.*"), recipe=RECIPE)
    folder = save_adapter(found[0], tmp_path / "one")
    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    assert (config["r"], config["lora_alpha"], config["target_modules"]) == (2, 4, ["first"])
    assert config["modules_to_save"] == ["score"]
    kept = load_file(folder / "adapter_model.safetensors")
    names = "first.lora_A.weight", "first.lora_B.weight", "score.bias", "score.weight"
    assert sorted(kept) == [f"base_model.model.{name}" for name in names]
    assert torch.equal(kept["base_model.model.first.lora_B.weight"], found[0].weights["first.lora_B"])


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_adapters_of_a_model_of_transformers(kind):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if kind == "llama":
        sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
        config = transformers.LlamaConfig(vocab_size=13, num_key_value_heads=2, **sizes)
        whole, targets = transformers.LlamaForCausalLM(config), ("*q_proj", "*v_proj")
    else:
        ends = {"bos_token_id": 0, "eos_token_id": 0}
        config = transformers.GPT2Config(vocab_size=13, n_embd=8, n_layer=1, n_head=2, n_positions=8, **ends)
        whole, targets = transformers.GPT2LMHeadModel(config), ("*c_attn",)

    def objective(model, batch):
        logits = model(input_ids=batch["ids"], use_cache=False).logits[:, :-1]
        return F.cross_entropy(logits.transpose(1, 2), batch["ids"][:, 1:], reduction="none").mean(1)

    data = [{"ids": torch.randint(0, 13, (n, 6))} for n in (4, 6)]
    recipe = Recipe(optimizer=AdamW(0.01, eps=1e-4), objective=objective, batch_size=4, epochs=1)
    form = LoRA(rank=2, targets=targets)
    fused, serial = (adapters(whole, data, form, recipe=recipe, strategy=s) for s in ("fused:2", "serial"))
    assert fused.plans[form].strategy.inner == "fused", fused.explain()
    assert worst(fused, serial) <= 1e-6
    assert len(adapted_layers(whole, form)) == len(targets)
    ids = data[0]["ids"]
    with torch.no_grad():
        gap = fused[0].merged()(input_ids=ids).logits - fused[0].model()(input_ids=ids).logits
    assert float(gap.abs().max()) <= 1e-5


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: LoRA(rank=0), "rank=0"),
        (lambda: LoRA(alpha=-1.0), "alpha=-1.0"),
        (lambda: LoRA(dropout=1.0), "dropout=1.0"),
        (lambda: adapters(Base(), clients(), LoRA(targets="*query")), r"named like '\*query'"),
        (lambda: adapters(Base(), clients(), LoRA(also="head.*")), r"named like 'head\.\*'"),
        (lambda: adapters(Base(), clients(), [LoRA()] * 2), "2 forms for 3 datasets"),
        (lambda: adapters(Base, clients()), "the base is a type"),
    ],
)
def test_what_cannot_be_an_adapter_is_refused(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


class Shared(nn.Module):
    """A base whose last layer has the weight of its embedding."""

    def __init__(self):
        super().__init__()
        self.embed, self.middle, self.out = nn.Embedding(5, 8), nn.Linear(8, 8), nn.Linear(8, 5, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x):
        return self.out(torch.tanh(self.middle(self.embed(x.argmax(1)))))


def normed():
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


def encoder():
    layer = nn.TransformerEncoderLayer(5, 1, 8, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Unflatten(1, (1, 5)), layer, nn.Flatten(), nn.Linear(5, 3))


@pytest.mark.parametrize("make", [Base, Shared, normed, encoder])
@pytest.mark.parametrize("also", [(), ("*.weight",)])
def test_whatever_the_base_a_merged_adapter_is_the_adapter_and_the_step_it_was_trained_in(make, also):
    torch.manual_seed(0)
    base, data, form = make(), clients((8, 4)), LoRA(rank=2, also=also)
    recipe = Recipe(optimizer=SGD(0.3), batch_size=4, epochs=2)
    found = adapters(base, data, form, recipe=recipe, strategy="serial")[0]
    assert all(float(t.abs().max()) > 0 for name, t in found.weights.items() if name.endswith("lora_B"))
    x = clients((6,))[0][0]
    beside, merged = found.model(), found.merged()
    assert type(merged) is type(base)
    with torch.no_grad():
        assert torch.allclose(beside(x), merged(x), atol=1e-5)
        assert not torch.allclose(base.eval()(x), merged(x), atol=1e-3)
        # a state dict of the very training, loaded into a model that never saw evenload's evaluation
        plain = with_adapters(base, form)
        plain.load_state_dict(dict(found.weights), strict=False)
        for norm in (m for m in plain.modules() if isinstance(m, nn.BatchNorm1d)):
            norm.eval()
            assert float(norm.running_mean.abs().max()) > 0
        assert torch.allclose(plain.train(make is not normed)(x), merged(x), atol=1e-5)


def test_a_weight_that_is_computed_cannot_be_merged_and_adapters_are_not_stacked():
    torch.manual_seed(0)
    base = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(5, 3)))
    found = adapters(base, clients((4,)), LoRA(rank=2), recipe=RECIPE, strategy="serial")[0]
    with pytest.raises(ConfigError, match="computed from other"):
        found.merged()
    with pytest.raises(ConfigError, match="has adapters already"):
        with_adapters(found.model(), LoRA(rank=2))


def test_an_adapter_that_fails_harms_no_other_of_its_form_or_another(base):
    data, forms = clients(), [LoRA(rank=2), LoRA(rank=3), LoRA(rank=2)]
    data[0] = (data[0][0], data[0][1] + 9)
    with pytest.raises(TaskError) as error:
        adapters(base, data, forms, recipe=RECIPE, strategy="fused:2")
    assert [a.status for a in error.value.result] == ["failed", "ok", "ok"]


def test_what_peft_cannot_hold_is_not_written(base, tmp_path):
    pytest.importorskip("safetensors")
    both = adapters(base, clients(), LoRA(rank=2, also="score.bias"), recipe=RECIPE, strategy="serial")[0]
    alone = adapters(nn.Linear(5, 3), clients(), LoRA(rank=2), recipe=RECIPE, strategy="serial")[0]
    for adapter in (both, alone):
        with pytest.raises(ConfigError, match="PEFT"):
            save_adapter(adapter, tmp_path / "one")
    assert not (tmp_path / "one").exists()


@pytest.mark.parametrize("name", ["rank", "alpha", "dropout", "targets", "also"])
@pytest.mark.parametrize("value", ["", True, -1, 0.5, float("nan"), [3], [["a"]], {}, 2**0.5 * 1j, object()])
def test_a_form_is_made_or_refused_and_never_fails_otherwise(name, value):
    with contextlib.suppress(ConfigError):
        assert isinstance(hash(LoRA(**{name: value})), int)


def test_a_layer_whose_name_ends_anothers_is_told_apart_for_peft(tmp_path):
    pytest.importorskip("safetensors")
    named = nn.Sequential(nn.Linear(5, 5), nn.Sequential(nn.LayerNorm(5), nn.Linear(5, 3)))
    found = adapters(named, clients(), LoRA(rank=2, targets="0"), recipe=RECIPE, strategy="serial")[0]
    folder = save_adapter(found, tmp_path / "one")
    pattern = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))["target_modules"]
    assert [name for name, _ in named.named_modules() if re.fullmatch(pattern, name)] == ["0"]


def test_modules_trained_in_part_are_written_whole_as_peft_reads_them(tmp_path):
    pytest.importorskip("safetensors")
    from safetensors.torch import load_file

    torch.manual_seed(0)
    made, form = normed(), LoRA(rank=2, targets="0", also="2.bias")
    found = adapters(made, clients((8,)), form, recipe=RECIPE, strategy="serial")[0]
    kept = load_file(save_adapter(found, tmp_path / "one") / "adapter_model.safetensors")
    whole = found.model().state_dict()
    for module in ("1", "2"):
        for name in (n for n in whole if n.startswith(f"{module}.")):
            assert torch.equal(kept[f"base_model.model.{name}"], whole[name])
