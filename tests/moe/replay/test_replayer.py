import contextlib
import json
import random
import re

import hypothesis.strategies as st
import numpy as np
import pytest
from examples_count import examples
from hypothesis import given, settings

from evenload.errors import ConfigError, FormatError, UnknownName
from evenload.moe import Fleet, rebalance_experts
from evenload.moe.generators import Popularity, generate
from evenload.moe.replay.page import page, write_replay
from evenload.moe.replay.replayer import STRATEGIES, imbalances, replay
from evenload.moe.search.layer_search import Effort
from evenload.moe.search.plan_file import read_plan, write_plan

BRIEF = Effort(n_windows=8, n_made_up=24, n_rounds=2, n_tries=60)
BATCHES = generate(Popularity(drift=0.1), n_windows=10, n_layers=2, n_experts=32, n_ids=4000).windows(1)
FLEET = Fleet.even(8, 40)
ONE_GPU = '{"slots": [1], "speeds": [1], "nodes": [0], "dead": []}'


@pytest.fixture(scope="module")
def result():
    return replay(BATCHES, FLEET, history=4, every=2, effort=BRIEF, expert_bytes=10**6, name="made <up>")


def test_every_strategy_serves_every_later_batch(result):
    assert [course.name for course in result.courses] == list(STRATEGIES)
    for course in result.courses:
        assert course.imbalance.shape == result.bound.shape == (6, 2)
        assert (course.imbalance >= result.bound - 1e-9).all()
        assert course.loads.mean(axis=1) == pytest.approx([1, 1])
        assert [move.batch for move in course.moves] == [2, 4]


def dealt_imbalance(phy2log, counts, n_gpus):
    """Deal each expert's tokens to its slots one by one, and look at the busiest GPU."""
    found = []
    for slots, tokens in zip(phy2log, counts, strict=True):
        loads = np.zeros(n_gpus)
        for expert, n in enumerate(tokens):
            held = np.flatnonzero(slots == expert)
            for token in range(n):
                loads[held[token % len(held)] * n_gpus // len(slots)] += 1
        found.append(loads.max() / loads.mean() if loads.any() else 1.0)
    return found


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.lists(st.integers(0, 40), min_size=6, max_size=6), min_size=2, max_size=4))
def test_all_is_counted_in_whole_tokens_so_that_routing_is_never_worse_than_an_equal_split(counts):
    """Exact routing is at most any other way, such as dealing tokens in turn, and the bound below it."""
    batches = np.array(counts, np.int64)[:, None]
    found = replay(batches, Fleet.even(4, 8), history=1, strategies=["EPLB", "EPLB + routing"])
    plain, routed = (course.imbalance for course in found.courses)
    placement = rebalance_experts(batches[0], 8, 1, 1, 4).phy2log
    assert plain[:, 0] == pytest.approx([dealt_imbalance(placement, one, 4)[0] for one in batches[1:]])
    assert (routed <= plain + 1e-9).all()
    assert (found.bound <= routed + 1e-9).all()
    totals = batches[1:].sum(axis=2)[:, 0]
    assert np.allclose(found.bound[:, 0] * totals / 4, np.round(found.bound[:, 0] * totals / 4))


def test_routing_and_search_pay(result):
    plain, routed, searched, few = (course.mean for course in result.courses)
    assert searched < routed < plain
    assert few < routed
    share = [np.mean([move.moved_share for move in course.moves]) for course in result.courses]
    assert share[3] < 0.3 < share[0]


def test_unlike_gpus():
    fleet = Fleet((6, 6, 6, 6, 6, 6, 6, 6), speeds=(1, 1, 1, 1, 2, 2, 2, 2), dead=frozenset([0]))
    result = replay(BATCHES, fleet, history=4, effort=BRIEF, strategies=["search + routing"])
    course = result.courses[0]
    assert course.loads[:, 0].tolist() == [0, 0]
    assert (course.imbalance >= result.bound - 1e-9).all()
    with pytest.raises(ConfigError, match="alike GPUs"):
        replay(BATCHES, fleet, history=4, strategies=["EPLB"])


@pytest.mark.parametrize(
    ("options", "error"),
    [({"history": 10}, ConfigError), ({"history": 0}, ConfigError), ({"strategies": ["best"]}, UnknownName)],
)
def test_bad_options_are_refused(options, error):
    with pytest.raises(error):
        replay(BATCHES, FLEET, **options)


def test_imbalances_of_a_plan_in_use():
    phy2log = rebalance_experts(BATCHES.sum(axis=0), 40, 1, 1, 8).phy2log
    routed, equal = (imbalances(phy2log, BATCHES, FLEET, routed=flag) for flag in (True, False))
    assert routed.shape == (10, 2)
    assert (routed <= equal + 1e-9).all()
    assert (imbalances(phy2log, 0 * BATCHES, FLEET) == 1).all()


def test_numbers_as_json(result):
    shown = json.loads(json.dumps(result.to_json()))
    assert shown["schema"] == 1
    assert shown["courses"][3]["moves"][0]["bytes"] % 10**6 == 0
    assert len(shown["bound"]) == 6
    assert np.array(shown["courses"][0]["loads"]).shape == (2, 8)


def test_the_page_is_one_file_that_loads_nothing(result, tmp_path):
    write_replay(result, tmp_path / "replay.html")
    text = (tmp_path / "replay.html").read_text()
    assert "{{" not in re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert "made <up>" not in text
    assert "made &lt;up&gt;" in text
    assert not re.findall(
        r'(?:src|href)="(?!data:|#)', re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    )
    view = json.loads(
        re.search(r'<script type="application/json" id="view">(.*?)</script>', text, re.DOTALL)[1]
    )
    assert view["courses"][2]["name"] == "search + routing"
    assert page(result) == text


def test_no_place_for_the_page(result, tmp_path):
    with pytest.raises(ConfigError, match="cannot write"):
        write_replay(result, tmp_path / "no" / "replay.html")


@pytest.mark.parametrize("name", ["plan.json", "plan.npz"])
def test_plans_on_disk(tmp_path, name):
    fleet = Fleet((3, 2), speeds=(1, 2), nodes=(0, 1), dead=frozenset([0]))
    phy2log = np.array([[0, 1, 2, 2, 1, -1]])
    write_plan(tmp_path / name, phy2log, 3, fleet)
    read, n_experts, same = read_plan(tmp_path / name)
    assert (read == phy2log).all()
    assert (n_experts, same) == (3, fleet)


def test_a_plan_as_tensorrt_llm_reads_it(tmp_path):
    """Its configuration: every layer's experts by slot, as many as ``num_slots``, and nothing else."""
    yaml = pytest.importorskip("yaml")
    path, fleet = tmp_path / "plan.yaml", Fleet.even(2, 4)
    phy2log = np.array([[0, 1, 2, 0], [2, 1, 0, 1]])
    write_plan(path, phy2log, 3, fleet)
    page = {
        "num_slots": 4,
        "layer_updates_per_iter": 0,
        "initial_global_assignments": dict(enumerate(phy2log.tolist())),
    }
    assert yaml.safe_load(path.read_text()) == page
    assert [np.array_equal(read_plan(path)[0], phy2log), *read_plan(path)[1:]] == [True, 3, fleet]
    path.write_text(yaml.safe_dump(page))  # by somebody else
    assert (read_plan(path)[0] == phy2log).all()
    with pytest.raises(ConfigError, match="empty slot"):
        write_plan(path, np.array([[0, 1, 2, -1]]), 3, fleet)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.yaml", "initial_global_assignments: {0: [0, 1]}", "is no plan"),
        ("a.yaml", "num_slots: 3\ninitial_global_assignments: {0: [0, 1]}", "2 slots of 3"),
        ("a.json", "{}", "is no plan"),
        ("a.json", "[1", "is no plan"),
        ("a.npz", "no zip", "is no plan"),
        (
            "a.json",
            f'{{"physical_to_logical_map": [[5]], "n_experts": 3, "fleet": {ONE_GPU}}}',
            "5 to 5, of 3",
        ),
        ("a.json", f'{{"physical_to_logical_map": [[-2]], "n_experts": 3, "fleet": {ONE_GPU}}}', "-2 to -2"),
        (
            "a.json",
            f'{{"physical_to_logical_map": [[0, 1]], "n_experts": 3, "fleet": {ONE_GPU}}}',
            "do not fit",
        ),
    ],
)
def test_what_is_no_plan_is_refused(tmp_path, name, content, words):
    (tmp_path / name).write_text(content)
    with pytest.raises(FormatError, match=words) as caught:
        read_plan(tmp_path / name)
    assert "moe place -o" in (caught.value.hint or "")


def test_no_such_plan(tmp_path):
    with pytest.raises(ConfigError, match="no plan at"):
        read_plan(tmp_path / "x.json")
    with pytest.raises(ConfigError, match="unknown kind"):
        write_plan(tmp_path / "x.txt", np.zeros((1, 2), int), 1, Fleet.even(2, 2))
    with pytest.raises(ConfigError, match="cannot write"):
        write_plan(tmp_path / "no" / "x.json", np.zeros((1, 2), int), 1, Fleet.even(2, 2))


@pytest.mark.parametrize("name", ["plan.json", "plan.npz"])
def test_a_damaged_plan_is_read_or_refused(tmp_path, name):
    path = tmp_path / name
    write_plan(path, np.array([[0, 1, 2, 2, 1, -1]]), 3, Fleet((3, 2), speeds=(1, 2), nodes=(0, 1)))
    whole = path.read_bytes()
    for _ in range(300):
        content = bytearray(whole[: random.choice([len(whole), random.randrange(len(whole))])])
        for _ in range(min(len(content), random.randrange(3))):
            content[random.randrange(len(content))] = random.randrange(256)
        path.write_bytes(content)
        with contextlib.suppress(FormatError):  # what raises another error stays in the test's folder
            read_plan(path)
