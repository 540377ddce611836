"""A Trainer of transformers on two real ranks with unequal shares is the plain Trainer in one process.

The oracle is transformers itself: the same class without the mixin, its own loss, sampler, accumulation and
clipping, on the whole batch in this process. Losses of texts are float32 within transformers, others float64.
"""

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import torch
import trainer_ranks
from accelerate import DistributedType
from torch.utils.data import IterableDataset
from trainer_ranks import CASES, Case

import evenload
from evenload.errors import ConfigError

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers and torch


@pytest.fixture(scope="module")
def ranks(forked_servers: None, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("checkpoints")
    return evenload.gang(
        lambda rank: trainer_ranks.everything(rank, folder), devices="cpu*2", timeout_s=500, echo=False
    )


def assert_same(found: dict[str, Any], case: Case) -> None:
    wanted, start = trainer_ranks.trained(case, 1), trainer_ranks.make_model(case.kind).state_dict()
    tolerance = 1e-6 if case.kind == "texts" else 1e-12
    for name, one in wanted["state"].items():
        torch.testing.assert_close(found["state"][name], one, rtol=0, atol=tolerance)
    assert max(float((one - start[name]).abs().max()) for name, one in wanted["state"].items()) > 0.01
    assert found["losses"] == pytest.approx(wanted["losses"][-len(found["losses"]) :], abs=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_weights_are_those_of_the_plain_trainer_in_one_process(
    ranks: list[dict[str, Any]], name: str
) -> None:
    for one in ranks:
        assert_same(one[name], CASES[name])
        assert one[name]["shares"] != (4, 4)


def test_a_training_goes_on_within_an_epoch(ranks: list[dict[str, Any]]) -> None:
    wanted = trainer_ranks.trained(CASES["tokens"], 1)["state"]
    for one in ranks:
        for name, value in one["resumed"]["state"].items():
            torch.testing.assert_close(value, wanted[name], rtol=0, atol=1e-6)


def test_texts_grouped_by_length_are_drawn_alike_on_every_rank(ranks: list[dict[str, Any]]) -> None:
    """EvenBatches refuses orders that differ; weights that differ would tell of batches that do."""
    first, second = (one["grouped"] for one in ranks)
    assert first["losses"] == pytest.approx(second["losses"])
    for name, value in first["state"].items():
        assert torch.equal(value, second["state"][name])


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return iter(trainer_ranks.Rows("texts"))


class Mixed(trainer_ranks.Even):
    """A trainer whose loss has a part that is divided by the tokens of a step, and one that is not."""

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return super().compute_loss(*args, **kwargs) + 1.0


@pytest.mark.parametrize(
    ("make", "rows", "more", "says"),
    [
        (trainer_ranks.Even, Stream(), {"max_steps": 1}, "Stream is not sampled one by one"),
        (
            trainer_ranks.Even,
            trainer_ranks.Rows("texts"),
            {"train_sampling_strategy": "batch_rebalance"},
            "Rows is",
        ),
        (Mixed, trainer_ranks.Rows("texts"), {}, "neither half of it nor the same"),
    ],
)
def test_what_cannot_be_exact_is_refused(tmp_path: Any, make: Any, rows: Any, more: Any, says: str) -> None:
    given = trainer_ranks.arguments(str(tmp_path), 1, 1, **more)
    args = trainer_ranks.transformers.TrainingArguments(**given)
    trainer = make(model=trainer_ranks.make_model("texts"), args=args, train_dataset=rows)
    with pytest.raises(ConfigError, match=says):
        trainer.train()


def test_only_ddp_is_trained(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given = trainer_ranks.arguments(str(tmp_path), 1, 1)
    args = trainer_ranks.transformers.TrainingArguments(**given)
    trainer = trainer_ranks.Even(
        model=trainer_ranks.make_model("texts"), args=args, train_dataset=trainer_ranks.Rows("texts")
    )
    monkeypatch.setattr(trainer.accelerator.state, "distributed_type", DistributedType.FSDP)
    with pytest.raises(ConfigError, match="not with FSDP"):
        trainer.get_train_dataloader()


@pytest.mark.slow
@pytest.mark.parametrize("averages", [True, False])
def test_trl_fine_tunes_as_in_one_process(averages: bool) -> None:
    """The oracle: TRL's own SFTTrainer in this process, on the whole batch."""
    pytest.importorskip("trl", reason="needs: pip install trl")
    more = {"average_tokens_across_devices": averages}
    wanted = trainer_ranks.fine_tuned(1, **more)
    for one in evenload.gang(
        lambda rank: trainer_ranks.fine_tuned(rank.size, **more), devices="cpu*2", timeout_s=500, echo=False
    ):
        assert one["shares"] != (4, 4)
        for name, value in wanted["state"].items():
            torch.testing.assert_close(one["state"][name], value, rtol=0, atol=1e-6)
