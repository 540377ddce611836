"""``evenload plan-training``: shares, the step over its bound, equal shares; every bad input with a hint."""

import json

import pytest
from click.testing import CliRunner

from evenload.certificate import check, load
from evenload.cli.plan_training import plan_training
from evenload.errors import EvenloadError

CARDS = "2x24GB:rtx4090,1x12GB:rtx3060"


def call(*args):
    return CliRunner().invoke(plan_training, [*map(str, args)], standalone_mode=False)


def page(*args):
    made = call(*args, "--json")
    assert made.exception is None, made.exception
    return json.loads(made.stdout)


def test_the_page_of_measured_steps(tmp_path):
    proof = tmp_path / "plan.cert.json"
    made = call("--devices", CARDS, "--step-s", "0.21,0.55", "--batch", 256, "--certificate", proof)
    assert made.stdout.splitlines() == [
        "256 samples a step on 2 x rtx4090, 1 x rtx3060",
        "",
        "device  card     samples     step  equal share",
        "cuda:0  rtx4090      108  0.264 s           86",
        "cuda:1  rtx4090      107  0.261 s           85",
        "cuda:2  rtx3060       41  0.262 s           85",
        "",
        "a step takes 0.264 s, 1.005 x the bound, which no shares can beat",
        "with equal shares (DDP) 0.544 s, 2.06 x as long",
    ]
    achieved, bound = check(load(proof))
    assert 1 <= achieved / bound < 1.01


def test_times_of_each_card_of_sizes_and_two_of_them():
    each = page("--devices", CARDS, "--step-s", "0.2,0.2,0.6@86", "--batch", 256)
    group = page("--devices", CARDS, "--step-s", "0.2@86,0.6@86", "--batch", 256)
    assert each == group
    two = page(
        "--devices", CARDS, "--step-s", "0.06@16,0.14@16", "--step-s", "0.21@64,0.55@64", "--batch", 256
    )
    assert [round(card["fixed_s"], 6) for card in two["cards"]] == [0.01, 0.01, 0.003333]


def test_data_sheets_memory_and_micro_batches():
    fit = ("--model-memory", "6GB", "--sample-memory", "150MB", "--most", "110,99", "--micro-batch", 4)
    found = page("--devices", CARDS, "--batch", 240, *fit)
    assert [card["most_samples"] for card in found["cards"]] == [110, 110, 40]
    assert [card["samples"] for card in found["cards"]] == [108, 108, 24]
    assert found["step_s"] is None
    assert not found["equal_fits"]
    assert "does not fit on cuda:2 (rtx3060)" in call("--devices", CARDS, "--batch", 240, *fit).stdout


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--devices", "cuda:0"), "no cards"),
        (("--devices", "1x24GB:mine"), r"cuda:0 \(mine\) is, is not known"),
        (("--devices", "1x24GB,,"), "no group"),
        (("--step-s", "1,2,3,4"), "4 values"),
        (("--step-s", "nan,1"), "no time"),
        (("--step-s", "1e300,1"), "no time"),
        (("--step-s", "\x1b]0;x\x07,1"), "no time"),
        (("--step-s", "1,1@0"), "no time"),
        (("--step-s", "1,1") * 3, "3 times"),
        (("--step-s", "1@3,1@3", "--step-s", "1@9,1@9"), "took"),
        (("--batch", 2), "cannot be divided"),
        (("--batch", 101, "--micro-batch", 4), "cannot be divided"),
        (("--most", "20,20"), "60 fit"),
        (("--most", "0,1"), "no numbers"),
        (("--most", "1,2,3,4"), "4 values"),
        (("--model-memory", "6GB"), "alone"),
        (("--sample-memory", "6"), "no size"),
        (("--sample-memory", "1GB", "--model-memory", "12GB"), "does not fit on cuda:2"),
    ],
)
def test_bad_input_is_refused_with_a_hint(args, said):
    given = {"--devices": CARDS, "--batch": 256}
    defaults = [word for pair in given.items() if pair[0] not in args for word in pair]
    made = call(*defaults, *args)
    assert isinstance(made.exception, EvenloadError)
    assert made.exception.hint
    with pytest.raises(EvenloadError, match=said) as caught:
        raise made.exception
    assert str(caught.value).isprintable() or "\n" in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_a_certificate_of_seconds_that_nobody_gave_is_refused(tmp_path):
    """Oracle: data sheets say how fast cards are beside one another, and no seconds."""
    line = ("--devices", CARDS, "--batch", 256, "--certificate", tmp_path / "proof.json")
    assert call(*line).exception.hint.startswith("add --step-s")
    assert not (tmp_path / "proof.json").exists()
    assert call(*line, "--step-s", "0.21,0.55").exception is None
