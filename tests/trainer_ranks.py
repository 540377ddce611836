"""Small models of random weights in a ``Trainer`` of transformers, on two ranks and in one process."""

import gc
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import training_ranks
import transformers
from torch.utils.data import Dataset

from evenload.training import EvenTrainerMixin

WORDS, LONGEST, BATCH, N = 13, 6, 8, 25  # the last batch has one sample: fewer than ranks


@dataclass(frozen=True)
class Case:
    """A training. ``own``: a loss of the user's own; ``more``: arguments of the Trainer."""

    kind: str
    n_accumulated: int = 1
    own: bool = False
    more: dict[str, Any] = field(default_factory=dict)


CASES = {
    "tokens": Case("texts"),
    "tokens of two batches": Case("texts", 2),
    "tokens of each rank": Case("texts", 2, more={"average_tokens_across_devices": False}),
    "smooth labels": Case("texts", more={"label_smoothing_factor": 0.1}),
    "classes": Case("classes", 2),
    "numbers": Case("numbers"),
    "own loss": Case("texts", own=True),
    "own loss of a plain module": Case("module", 2, own=True),
}


class Rows(Dataset):  # type: ignore[type-arg]
    """Texts of unequal length, with what is to be learned of each."""

    def __init__(self, kind: str):
        self.kind = kind

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index >= N:
            raise IndexError(index)
        made = torch.Generator().manual_seed(index)
        words = torch.randint(1, WORDS, (LONGEST,), generator=made)
        is_there = torch.arange(LONGEST) < 3 + index % 4
        texts = {"input_ids": words * is_there, "attention_mask": is_there.long()}
        if self.kind == "module":
            return {"x": words.double(), "labels": words[0] % 3}
        if self.kind == "texts":
            return {**texts, "labels": torch.where(is_there, words, -100)}
        return {**texts, "labels": words[0] % 3 if self.kind == "classes" else words[0] / WORDS}


class Linear(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(LONGEST, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.layer(x / WORDS)}


def make_model(kind: str) -> torch.nn.Module:
    torch.manual_seed(1)
    size = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    if kind == "module":
        return Linear().double()
    if kind == "texts":
        config = transformers.LlamaConfig(vocab_size=WORDS, num_key_value_heads=2, **size)
        return transformers.LlamaForCausalLM(config).double()
    config = transformers.BertConfig(vocab_size=WORDS, num_labels=3 if kind == "classes" else 1, **size)
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    return transformers.BertForSequenceClassification(config).double()


class OwnLoss:
    """A trainer whose loss is the mean over its batch, of the first word: none of super's."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        logits = model(**inputs)["logits"]
        if logits.ndim == 2:
            return torch.nn.functional.cross_entropy(logits, inputs["labels"])
        return torch.nn.functional.cross_entropy(logits[:, 0], inputs["labels"][:, 1])


class Told(EvenTrainerMixin):
    """The mixin, whose ranks' speeds are what ``training_ranks`` says; nothing is timed."""

    def even_batches(self, *given: Any) -> Any:
        even = super().even_batches(*given)
        training_ranks.told(even, training_ranks.changing(even._ranks.number))
        return even


class Even(Told, transformers.Trainer):
    """The Trainer with it."""


class OwnEven(OwnLoss, Even):
    """As people write it: a class with the loss, over the mixin."""


class OwnPlain(OwnLoss, transformers.Trainer):
    """The same without."""


def arguments(folder: str, n_ranks: int, n_accumulated: int, **more: Any) -> dict[str, Any]:
    return {
        "output_dir": folder, "use_cpu": True, "per_device_train_batch_size": BATCH // n_ranks,
        "gradient_accumulation_steps": n_accumulated, "num_train_epochs": 2, "optim": "sgd",
        "learning_rate": 0.5, "lr_scheduler_type": "constant", "save_strategy": "no", "report_to": [],
        "disable_tqdm": True, "logging_strategy": "epoch", "seed": 5, "max_grad_norm": 0.3, **more,
    }  # fmt: skip


def fine_tuned(n_ranks: int, **more: Any) -> dict[str, Any]:
    """The same by TRL's SFTTrainer, with its own loss, collator and settings, of texts that are tokens."""
    import datasets
    import trl
    from tokenizers import Tokenizer, models

    class EvenSFT(Told, trl.SFTTrainer):
        pass

    words = Tokenizer(models.WordLevel({f"w{n}": n for n in range(WORDS)}, unk_token="w0"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w1", pad_token="w0")
    made = torch.Generator().manual_seed(0)
    texts = [torch.randint(2, WORDS, (3 + n % 4,), generator=made).tolist() for n in range(N)]
    with tempfile.TemporaryDirectory() as folder:
        args = trl.SFTConfig(**arguments(folder, n_ranks, 2, bf16=False, **more))
        model, make = make_model("texts"), trl.SFTTrainer if n_ranks == 1 else EvenSFT
        trainer = make(
            model=model,
            args=args,
            train_dataset=datasets.Dataset.from_dict({"input_ids": texts}),
            processing_class=tokenizer,
        )
        trainer.train()
    return {
        "state": {name: one.detach() for name, one in model.state_dict().items()},
        "shares": None if n_ranks == 1 else trainer.even.shares.counts,
    }


def trained(case: Case, n_ranks: int, **more: Any) -> dict[str, Any]:
    """The weights after two epochs, and what was logged."""
    resumed = more.pop("resume_from_checkpoint", None)
    with tempfile.TemporaryDirectory() as folder:
        given = arguments(more.pop("folder", folder), n_ranks, case.n_accumulated, **case.more, **more)
        plain, even = (OwnPlain, OwnEven) if case.own else (transformers.Trainer, Even)
        model, make = make_model(case.kind), plain if n_ranks == 1 else even
        args = transformers.TrainingArguments(**given)
        trainer = make(model=model, args=args, train_dataset=Rows(case.kind))
        trainer.train(resume_from_checkpoint=resumed)
    return {
        "state": {name: one.detach() for name, one in model.state_dict().items()},
        "losses": [one["loss"] for one in trainer.state.log_history if "loss" in one],
        "shares": None if n_ranks == 1 else trainer.even.shares.counts,
    }


def resumed(folder: Path, n_ranks: int) -> dict[str, Any]:
    """A training that ends within its second epoch, and another one that goes on from there."""
    case = CASES["tokens"]
    trained(case, n_ranks, folder=str(folder), save_strategy="steps", save_steps=6, max_steps=6)
    torch.distributed.barrier()
    return trained(case, n_ranks, resume_from_checkpoint=str(folder / "checkpoint-6"))


def everything(rank: Any, folder: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    gc.freeze()  # each training collects garbage, and would look through all that is imported
    found = {name: trained(case, rank.size) for name, case in CASES.items()}
    grouped = Case("texts", more={"train_sampling_strategy": "group_by_length"})
    return {**found, "grouped": trained(grouped, rank.size), "resumed": resumed(folder, rank.size)}
