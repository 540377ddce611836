"""``TrainingChain``: what a plain loop would write, on any fleet, and each change found where it was made."""

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from itertools import chain
from math import inf, nextafter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import chain_ranks
import torch
from chain_ranks import EVERY, Training, flip_bit
from exact_ranks import BATCH, GRAIN, N_STEPS, SEED, N, steps_by_hand
from torch import nn

import evenload
from evenload.errors import ConfigError, EvenloadError
from evenload.merkle import Log
from evenload.training import EvenBatches, TrainingChain
from evenload.training.chain import digest_of_state


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "chain"


def record(folder: Path, n_steps: int = N_STEPS, **options: Any) -> dict[int, dict[str, Any]]:
    """Train with a new chain; what was saved after each step."""
    with Log(folder, origin="example.com/run", threads=1) as log:
        training = Training(log, **options)
        training.train(n_steps)
        return training.kept


def read(folder: Path) -> list[dict[str, Any]]:
    with Log(folder, is_writable=False, threads=1) as log:
        return [json.loads(log[k]) for k in range(len(log))]


def without_fleet(folder: Path) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in link.items() if name not in ("shares", "before")}
        for link in read(folder)
    ]


def repeated(
    folder: Path, saved: dict[str, Any] | None = None, until: int | None = None, **options: Any
) -> Any:
    with Log(folder, is_writable=False, threads=1) as log:
        return Training(log, saved, **options).repeat(until)


def sha256(*parts: Any) -> str:
    return hashlib.sha256(
        b"".join(one if isinstance(one, bytes) else one.encode() for one in parts)
    ).hexdigest()


def bits(name: str, one: torch.Tensor) -> bytes:
    return f"{name} {one.dtype} {tuple(one.shape)}\n".encode() + one.numpy().tobytes()


def optimizer_digest(optimizer: Any) -> str:
    """The digest of an AdamW's state as the page of the format says, written for that alone."""
    parts, state = [], optimizer.state_dict()
    (group,) = state["param_groups"]
    parts.append(" keys 2\n/'param_groups' parts 1\n")
    parts.append(f"/'param_groups'/0 keys {len(group)}\n")
    for key in sorted(group):
        at = f"/'param_groups'/0/{key!r}"
        if isinstance(group[key], list | tuple):
            rows = [f"{at}/{k} {one!r}\n" for k, one in enumerate(group[key])]
            parts.append(f"{at} parts {len(group[key])}\n" + "".join(rows))
        else:
            parts.append(f"{at} {group[key]!r}\n")
    parts.append(f"/'state' keys {len(state['state'])}\n")
    for number in sorted(state["state"]):
        found = state["state"][number]
        parts.append(f"/'state'/{number} keys {len(found)}\n")
        parts += [bits(f"/'state'/{number}/{key!r}", found[key]) for key in sorted(found)]
    return sha256(*parts)


def by_hand() -> Iterator[tuple[str, str, list[int]]]:
    """Train in a plain loop without evenload; yield weights, optimizer and samples after each step."""
    model, optimizer = chain_ranks.make_model()
    x, y = chain_ranks.make_dataset().tensors

    def loss_of(grain: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(model(x[grain]), y[grain]) * (len(grain) * (1 / len(batch)))

    for samples in chain([torch.tensor([])], steps_by_hand(model, optimizer, loss_of)):
        weights = sha256(*(bits(name, one) for name, one in model.state_dict().items()))
        yield weights, optimizer_digest(optimizer), samples.tolist()


def test_links_are_those_of_a_plain_loop(folder: Path) -> None:
    """Oracle: a serial torch loop that sums gradients as whole numbers, hashed by hashlib in this test."""
    record(folder)
    links = {one["stop"]: one for one in read(folder)}
    assert [*links] == [0, 3, 6, 9]
    order, n_since = sha256(""), 0
    for step, (weights, optimizer, samples) in enumerate(by_hand()):
        if samples:
            order, n_since = sha256(order, str(samples)), n_since + len(samples)
        if step in links:
            link = links[step]
            assert (link["weights"], link["optimizer"], link["order"]) == (weights, optimizer, order)
            assert link["shares"] == [n_since]
            order, n_since = sha256(""), 0
    run = links[9]["run"]
    assert (run["seed"], run["micro_batch"], run["global_batch"], run["samples"]) == (SEED, GRAIN, BATCH, N)
    assert links[9]["kernels"]["torch"] == torch.__version__
    assert links[9]["place"] == [2, BATCH]


def test_a_chain_of_unequal_ranks_with_hand_overs_is_repeated_on_one(
    forked_servers: None, tmp_path: Path, folder: Path
) -> None:
    """Oracle: one rank without the others. Three ranks are lost after step 8; two go on from step 5."""
    told = evenload.gang(chain_ranks.hand_over(str(tmp_path)), devices="cpu*3", timeout_s=500, echo=False)
    assert told[0] == told[1]
    assert told[2] == told[0][:1]
    for last, said in zip((2, 1), told[0], strict=True):
        assert "rank 0 has weights=" in said
        assert f"rank {last} has" in said
    links = read(folder)
    assert [one["stop"] for one in links] == [0, 3, 6, 9]
    assert [len(one["shares"]) for one in links] == [3, 3, 3, 2]
    assert len({*links[2]["shares"]}) == 3
    record(tmp_path / "alone")
    assert without_fleet(folder) == without_fleet(tmp_path / "alone")
    for step in (0, 5):
        saved = torch.load(tmp_path / "checkpoint", weights_only=True) if step else None
        found = repeated(folder, saved)
        assert (found.is_equal, found.start, found.stop) == (True, step, 9)


class Order:
    """A sampler of the same samples in each epoch, of which one may be exchanged for another."""

    def __init__(self, exchanged: int | None = None):
        self.samples = [*range(N)]
        if exchanged is not None:
            self.samples[exchanged] = (exchanged + 20) % N

    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[int]:
        return iter(self.samples)


def change_weight(training: Any, _: int) -> None:
    flip_bit(training.model)


def change_rate(training: Any, _: int) -> None:
    group = training.optimizer.param_groups[0]
    group["lr"] = nextafter(group["lr"], inf)


def change_state(training: Any, _: int) -> None:
    state = training.optimizer.state[next(training.model.parameters())]
    state["exp_avg_sq"].view(torch.int32)[0, 0] ^= 1 << 20


def change_row(training: Any, step: int) -> None:
    last = (step - 1) % 4 * BATCH + 8  # of the step's samples, in order: the first grain is loaded already
    training.dataset.tensors[0][last, 0] += 1.0


@pytest.mark.parametrize("change", [change_weight, change_rate, change_state, change_row, None])
def test_a_change_is_found_in_the_stretch_where_it_was_made(
    folder: Path, change: Callable[[Any, int], None] | None
) -> None:
    """Oracle: the random step at which this test changes one bit, one row, or exchanges one sample."""
    saved, drawn = record(folder, source=Order()), random.Random(getattr(change, "__name__", ""))
    for _ in range(3):
        first = 2 if change is change_state else 1  # there is no state before the first step
        step = drawn.randint(first, 9 if change else 4)
        start = drawn.randint(0, step - 1)
        if change is None:
            options: dict[str, Any] = {"source": Order((step - 1) * BATCH + drawn.randrange(9))}
        else:
            options = {
                "source": Order(),
                "deed": lambda one, at, step=step: change(one, at) if at == step else None,
            }
        found = repeated(folder, saved.get(start), **options)
        expected = -(-step // EVERY) * EVERY
        assert (found.is_equal, found.is_judged, found.stop) == (False, True, expected)
        assert found.start == expected - EVERY
        assert "weights" in found.differs or change is change_rate  # by an ulp: it may be lost in rounding
        assert ("order" in found.differs) == (change is None)
        assert repeated(folder, saved.get(start), source=Order()).is_equal


def test_other_kernels_are_named_before_a_chain_is_called_false(folder: Path) -> None:
    """Bits of other threads may be others; the order of samples may not."""
    record(folder, source=Order())
    torch.set_num_threads(2)
    found = repeated(folder, source=Order(), deed=lambda one, at: change_rate(one, at) if at == 2 else None)
    assert (found.is_equal, found.is_judged) == (False, False)
    assert str(found).startswith("cannot be judged: steps 1 to 3 ")
    assert "torch threads there 1, here 2" in str(found)
    found = repeated(folder, source=Order(exchanged=1))
    assert (found.is_judged, found.differs[0]) == (True, "order")


def test_a_training_that_was_killed_goes_on_with_the_same_chain(folder: Path) -> None:
    """Oracle: the chain of a training that was never interrupted. A crash cuts the file anywhere."""
    whole = folder.with_name("whole")
    saved, drawn = record(whole), random.Random(1)
    content = (whole / "leaves").read_bytes()
    for case in range(6):
        cut = folder.with_name(f"cut {case}")
        cut.mkdir()
        (cut / "leaves").write_bytes(content[: drawn.randrange(content.index(b'"stop":3'), len(content))])
        with Log(cut, threads=1) as log:
            start = drawn.randrange(1, EVERY * len(log))  # a checkpoint behind the last link has its own
            Training(log, saved[start]).train(N_STEPS - start)
        assert without_fleet(cut) == without_fleet(whole)


def test_a_training_that_comes_out_otherwise_ends_with_the_stretch(folder: Path) -> None:
    saved = record(folder)
    before = (folder / "leaves").read_bytes()
    with Log(folder, threads=1) as log:
        training = Training(log, saved[4])
        flip_bit(training.model)
        with pytest.raises(
            EvenloadError, match=r"trained again, and not equal: steps 4 to 6 .*\(weights, optimizer\)"
        ):
            training.train(3)
    assert (folder / "leaves").read_bytes() == before


def without_exact(log: Any, _: Any) -> None:
    training = Training(log)
    even = EvenBatches(training.dataset, global_batch=4)
    TrainingChain(log, even, training.model, training.optimizer)


def forgotten(log: Any, saved: Any) -> None:
    training = Training(log, saved[9])
    for step in training.even.steps(training.loader, training.model):
        training.train_step(step)
    training.chain.step()


def at(saved: Any, start: int, step: int) -> Any:
    return {**saved[6], "chain": {**saved[6]["chain"], "start": start, "step": step}}


def unsaved_weight(log: Any, saved: Any) -> None:
    state = {**saved[6], "model": {name: one.clone() for name, one in saved[6]["model"].items()}}
    state["model"]["0.weight"].view(torch.int32)[1, 1] ^= 1
    Training(log, state)


REFUSED: list[tuple[Callable[[Any, Any], Any], str]] = [
    (lambda log, saved: Training(log, seed=8), "another run: seed there 7, here 8"),
    (lambda log, saved: Training(log, width=5), "another run: model "),
    (lambda log, saved: Training(log, micro_batch=3), "another run: micro_batch there 2, here 3"),
    (lambda log, saved: Training(None), "the log is None"),
    (lambda log, saved: Training("runs/chain"), "the log is 'runs/chain'"),
    (lambda log, saved: Training(log, saved[6], drop_last=True), "another run: drop_last"),
    (lambda log, saved: Training(log, {**saved[6], "chain": None}),
     r"at step 0 \(place, weights, optimizer differ\)"),
    (lambda log, saved: Training(log, {**saved[6], "chain": saved[3]["chain"]}),
     r"at step 3 \(place, weights"),
    (lambda log, saved: Training(log, {**saved[6], "chain": {"step": 1}}), "start of the state is None"),
    (lambda log, saved: Training(log, {**saved[6], "chain": 5}), "state=5"),
    (lambda log, saved: Training(log, at(saved, 18, 20)), "at step 20, behind a link at 18"),
    (lambda log, saved: Training(log, at(saved, 5, 8)), "at step 8, behind"),
    (unsaved_weight, r"at step 6 \(weights differ\)"),
    (without_exact, "without exact=True"),
    (forgotten, "3 steps were trained since the chain counted one"),
    (lambda log, saved: Training(log, saved[9]).repeat(), "until=None is no link ahead of step 9"),
    (lambda log, saved: Training(log).repeat("x"), "until='x' is no link"),
    (lambda log, saved: Training(log).repeat(5), "until=5 is no link"),
    (lambda log, saved: Training(log).chain.repeat([], print), "no batch left"),
]  # fmt: skip


def test_what_makes_no_sense_is_refused_and_changes_nothing(folder: Path) -> None:
    saved = record(folder, 9)
    before = (folder / "leaves").read_bytes()
    with Log(folder, threads=1) as log:
        for act, says in REFUSED:
            with pytest.raises(ConfigError, match=says):
                act(log, saved)
    assert (folder / "leaves").read_bytes() == before


def test_a_log_of_something_else_is_refused(folder: Path) -> None:
    with Log(folder, origin="example.com/other", threads=1) as log:
        log.append([b"release 1.0"])
        with pytest.raises(ConfigError, match="leaf 0 of the log is no link of a training's chain"):
            Training(log)


def test_states_that_differ_have_other_digests() -> None:
    """Oracle: values that are told apart by ``==`` and type; the order in which a dict was made is none."""
    zero = torch.zeros(2)
    states: list[Any] = [
        {}, [], {"a": {}}, {"a": []}, {"a": None}, {"a": 0}, {"a": 0.0}, {"a": -0.0}, {"a": "0"},
        {"a": False},
        {0: 1}, {"0": 1}, {"a": [1, 2]}, {"a": [2, 1]}, {"a": [[1], 2]}, {"a": zero}, {"a": -zero},
        {"a": zero.double()}, {"a": zero.view(1, 2)}, {"a\n": 1}, {"a": "\n"}, {"a": 0, "b": 0},
    ]  # fmt: skip
    assert len({digest_of_state(one) for one in states}) == len(states)
    assert digest_of_state({"b": (1, 2.5), "a": 0}) == digest_of_state({"a": 0, "b": [1, 2.5]})
    with pytest.raises(ConfigError, match="has a function at \"/'f'\""):
        digest_of_state({"f": lambda: 0})
