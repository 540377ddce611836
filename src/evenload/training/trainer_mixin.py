"""``EvenTrainerMixin``: ``EvenBatches`` in a ``Trainer`` of transformers, and in what derives from it.

    Trainer's sampler ──► EvenBatches ──► Trainer's loop ──► its loss ──► weighed by the share ──► backward

The loop, the order of samples, the loss, accumulation and checkpoints stay those of the Trainer: after each
step the weights are those of a Trainer in one process that has the whole batch.
"""

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from evenload.errors import ConfigError, quoted
from evenload.training.even_batches import EvenBatches

if TYPE_CHECKING:
    from transformers import Trainer
else:
    Trainer = object

OPTIONS = (
    "collate_fn", "num_workers", "pin_memory", "persistent_workers", "multiprocessing_context",
    "prefetch_factor", "worker_init_fn",
)  # fmt: skip
ALIKE = 0.1  # two losses, of which one is expected to be the other or its half


class EvenTrainerMixin(Trainer):
    """A mixin for ``transformers.Trainer`` and its kind (TRL's ``SFTTrainer``), written before it.

        class MyTrainer(EvenTrainerMixin, Trainer):
            pass

    A step has as many samples as without it, ``per_device_train_batch_size`` times the ranks. Each rank's
    share of them goes by its speed. ``even``: the ``EvenBatches``, once training has begun. Trains with DDP.

    Raises ConfigError for FSDP, DeepSpeed, models cut over GPUs, and data without a length.
    """

    even: EvenBatches
    _multiplied: float | None = None  # the loss, a rank's mean, by this; 0.0: it is a part of all ranks' mean
    _tokens: tuple[float, float] | None = None

    def even_batches(self, sampler: Any, global_batch: int) -> EvenBatches:
        """Return the batches of a training. Override it for ``most``, ``record`` and the like."""
        return EvenBatches(sampler, global_batch=global_batch, drop_last=self.args.dataloader_drop_last)

    def get_train_dataloader(self) -> Any:
        """Return a loader of even batches, with the Trainer's own order of samples, collator and workers."""
        self._refuse()
        usual = super().get_train_dataloader()
        sampler = _sampler_of(usual, self.args.seed if self.args.data_seed is None else self.args.data_seed)
        n_ranks = 1 if self.accelerator.split_batches else self.accelerator.num_processes
        self.even = self.even_batches(sampler, self.args.train_batch_size * n_ranks)
        self._multiplied = None
        return self.even.loader(usual.dataset, **{name: getattr(usual, name) for name in OPTIONS})

    def _refuse(self) -> None:
        kind = self.accelerator.distributed_type.value
        is_cut = getattr(self.accelerator, "parallelism_config", None) is not None
        if is_cut or self.args.n_gpu > 1 or not (kind == "NO" or kind.startswith("MULTI_")):
            what = "a model cut over GPUs" if is_cut else "DataParallel" if self.args.n_gpu > 1 else kind
            raise ConfigError(
                f"even batches train with DDP, not with {what}", hint="use DDP: torchrun, no plugin"
            )
        if not hasattr(super(), "_run_epoch"):
            raise ConfigError("this Trainer has another loop", hint="pip install --upgrade transformers")

    # --- the loss ---------------------------------------------------------------------------------

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> Any:
        """Return the batches of a step, and how many tokens they have without those of empty shares."""
        batches = list(itertools.islice(epoch_iterator, num_batches))
        parts = self.even.coming(len(batches))
        counted = [
            batch if part.n_samples else _without_labels(batch)
            for batch, part in zip(batches, parts, strict=True)
        ]
        _, n_tokens = super().get_batch_samples(iter(counted), num_batches, device)
        self._tokens = None
        if n_tokens is not None and not self.args.average_tokens_across_devices:
            self._tokens = float(n_tokens), self.even.total(n_tokens)
        return batches, n_tokens

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """Train a batch as the Trainer does, with its loss weighed; returns that loss."""
        if self._multiplied is None:
            self._multiplied = self._look_at_loss(model, inputs, num_items_in_batch)
        backward, seen = self.accelerator.backward, []

        def weighed(loss: Any, **kwargs: Any) -> None:
            seen.append(self._weighed(loss))
            backward(seen[0], **kwargs)

        self.accelerator.backward = weighed
        try:
            super().training_step(model, inputs, num_items_in_batch)
        finally:
            del self.accelerator.backward
        return seen[0].detach()

    def _weighed(self, loss: Any) -> Any:
        """Return a loss so that the mean of all ranks is the Trainer's loss of the whole batch."""
        if self._multiplied:
            return self.even.scale(loss / self._multiplied)
        n_tokens, total = self._tokens or (1.0, self.accelerator.num_processes)
        return self.even.scale(loss, weight=n_tokens, total=total)

    def _look_at_loss(self, model: Any, inputs: Any, n_tokens: Any) -> float:
        """Return by what a rank's mean is multiplied, 0.0 if the loss is divided by ``n_tokens``.

        What a model or a loss of the user's own does with the tokens of a step is written nowhere: it is
        found out by doubling their number, and by leaving it out.
        """
        if n_tokens is None:
            return 1.0
        once, halved, mean = (self._loss(model, inputs, n) for n in (n_tokens, 2 * n_tokens, None))
        found = self.accelerator.gather(once.new_tensor([[once, halved, mean]]))
        once, halved, mean = max(found.tolist(), key=lambda one: abs(one[0]))  # a rank may have no token
        if once and abs(halved / once - 0.5) < ALIKE / 2:
            return 0.0
        if mean and abs(halved / once - 1) < ALIKE:
            return once / mean
        raise ConfigError(
            f"the loss is {once:g}, and {halved:g} for twice as many tokens: neither half of it nor the same",
            hint="divide the whole loss by num_items_in_batch, or nothing of it",
        )

    def _loss(self, model: Any, inputs: Any, n_tokens: Any) -> Any:
        import torch

        devices = [] if self.args.device.type == "cpu" else [self.args.device]
        with torch.no_grad(), torch.random.fork_rng(devices), self.compute_loss_context_manager():
            model.train()
            given = dict(self._prepare_inputs(inputs))
            return self.compute_loss(model, given, num_items_in_batch=n_tokens).float()  # pyrefly: ignore

    # --- the loop ---------------------------------------------------------------------------------

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train, and take in the last step."""
        done = super().train(*args, **kwargs)
        self.even.close()
        return done

    def _run_epoch(self, **given: Any) -> Any:  # pyrefly: ignore
        n_done = given["steps_trained_in_current_epoch"]
        is_resumed = given["resume_from_checkpoint"] is not None and given["epoch"] == given["epochs_trained"]
        if is_resumed and n_done and not self.args.ignore_data_skip:
            given["train_dataloader"] = self._resumed(given["train_dataloader"], given["epoch"], n_done)
        return super()._run_epoch(**given)

    def _resumed(self, loader: Any, epoch: int, n_done: int) -> Any:
        """Return a loader in the middle of an epoch, of which the Trainer skips ``n_done`` batches."""
        from torch.utils.data import DataLoader

        self.even.go_to(epoch, n_done)
        options = {name: getattr(loader, name) for name in OPTIONS}
        return DataLoader(loader.dataset, batch_sampler=_Skipped(self.even, n_done), **options)


class _Skipped:
    """The batches that are left of an epoch, after as many empty ones as were trained: these are skipped."""

    def __init__(self, even: EvenBatches, n_done: int):
        self._even, self._n_done = even, n_done

    def __len__(self) -> int:
        return len(self._even)

    def __iter__(self) -> Iterator[list[Any]]:
        yield from ([] for _ in range(self._n_done))
        yield from self._even


class _Seeded:
    """A sampler without epochs that draws alike on every rank, and again when a training goes on."""

    def __init__(self, sampler: Any, seed: int):
        self._sampler, self._seed = sampler, seed

    def set_epoch(self, epoch: int) -> None:
        import torch

        self._sampler.generator = torch.Generator().manual_seed(self._seed + epoch)

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._sampler)


def _sampler_of(loader: Any, seed: int) -> Any:
    """Return what a loader of accelerate's takes single samples from. Raises ConfigError."""
    from torch.utils.data import BatchSampler

    batches = getattr(loader, "batch_sampler", None)
    while hasattr(batches, "batch_sampler"):
        batches = batches.batch_sampler
    sampler = getattr(batches, "sampler", None)
    if type(batches) is not BatchSampler or not hasattr(sampler, "__len__"):
        raise ConfigError(
            f"{type(loader.dataset).__name__} is not sampled one by one",
            hint="give a data set with a length, and train_sampling_strategy random or group_by_length",
        )
    is_drawn = hasattr(sampler, "generator") and not hasattr(sampler, "set_epoch")
    return _Seeded(sampler, seed) if is_drawn else sampler


def _without_labels(batch: Any) -> Any:
    """Return a batch of which no token is counted."""
    if not hasattr(batch, "items"):
        raise ConfigError(
            f"a batch is {quoted(type(batch).__name__)}", hint="have the collator return a dict"
        )
    return {
        name: one.new_full(one.shape, -100) if name in ("labels", "shift_labels") else one
        for name, one in batch.items()
    }
