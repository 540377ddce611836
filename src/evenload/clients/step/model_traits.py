"""Traits of a model that decide whether and how its clients are trained together, found by one plain step."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from evenload.clients.generators import Drawn, seeded
from evenload.clients.step.dropout import KEY
from evenload.clients.step.functions import ReplacedFunctions
from evenload.clients.step.fuse import StepForm
from evenload.clients.step.module_state import ModuleState, copy_model, hooks_of
from evenload.clients.step.objective import BatchLoss, augmented, outputs_of, precision_of
from evenload.clients.values.data import Batch
from evenload.clients.values.recipe import Recipe
from evenload.clients.values.task import ClientTask
from evenload.errors import quoted


@dataclass(frozen=True, slots=True)
class ModelTraits:
    """The traits of a model with one kind of tasks.

    names    state dict name -> the name of its tensor among parameters and buffers (tied ones share one)
    trained  parameters that a loss reaches;  changing  buffers that a forward pass in training writes
    refusal  why clients of this model cannot be fused at all, or None
    has_norm has batch statistics, which need more than one value
    draws    draws from a generator that the whole process shares: torch's, numpy's or Python's
    replaces calls functions of torch that a fused step replaces
    has_plain_gradients  every gradient in a step is the derivative of what was computed, so that it may be
             taken of all clients' operations as vmap made them (``PLAIN``)
    """

    names: Mapping[str, str]
    trained: tuple[str, ...]
    changing: tuple[str, ...]
    refusal: str | None
    has_norm: bool
    draws: bool
    replaces: bool = False
    has_plain_gradients: bool = False


# Operations whose gradient is the derivative of what they compute, by the names that autograd gives them. Not
# among them: functions with a backward of their own, what torch gives other gradients to by convention
# (padding_idx), and operations that vmap knows as a whole only, or whose ties it may break otherwise.
PLAIN_NAMES = """
    Abs Add Addmm Alias Baddbmm BinaryCrossEntropyWithLogits Bmm Cat Clamp ClampMax ClampMin Clone
    ConstantPadNd Cos Cumsum Div Elu Erf Exp Expand Flip Gather Gelu Hardswish Hardtanh Index
    IndexSelect LeakyRelu Log Log1P LogSigmoid LogSoftmax Logsumexp MaskedFill Mean Mish Mm MseLoss
    Mul NativeBatchNorm NativeGroupNorm NativeLayerNorm Neg NllLoss NllLoss2D Permute Pow Relu
    Repeat ReshapeAlias Roll Rsqrt ScaledDotProductFlashAttentionForCpu Select Sigmoid Silu Sin Slice
    SmoothL1Loss Softmax Softplus Split SplitWithSizes Sqrt Squeeze Stack Std Sub Sum T Tanh ToCopy
    Transpose Unbind UnsafeSplit UnsafeView Unsqueeze Var View Where
"""
PLAIN = frozenset(f"{name}Backward{version}" for name in PLAIN_NAMES.split() for version in range(3))
# What a model may ask of a tensor, or do to it, that differs while autograd works outside of vmap.
WATCHED = frozenset(
    [getattr(torch.Tensor, name).__get__ for name in ("requires_grad", "grad_fn", "is_leaf")]
    + [getattr(torch.Tensor, name) for name in ("register_hook", "retain_grad")]
)


def class_count(model: nn.Module, recipe: Recipe, x: Batch, y: Tensor) -> int | None:
    """The model's number of classes, found with one row; None if the loss has no classes."""
    if not recipe.has_classes or recipe.step is not None:
        return None
    outputs = ask(model, recipe, x, y)
    return outputs.shape[1] if outputs.dim() > 1 else None


@torch.no_grad()
def ask(model: nn.Module, recipe: Recipe, x: Batch, y: Tensor) -> Any:
    """The model's outputs for rows ``x``, augmented by the recipe; model and generator stay as they are.

    Raises whatever the model and the augmentation raise.
    """
    was_training = model.training
    model.eval()
    try:
        with torch.random.fork_rng(devices=[]), precision_of(recipe, y.device.type):
            if recipe.objective is not None:
                return BatchLoss(recipe).rows(model, x, y, torch.tensor(0))[0]
            return outputs_of(model, augmented(recipe, x, torch.tensor(0)))
    finally:
        model.train(was_training)


def find_traits(model: nn.Module, task: ClientTask) -> ModelTraits:
    """Find the traits by one step on the task's first batch. Raises whatever the model raises."""
    probed = copy_model(model).train()
    probed.load_state_dict(task.start)
    n = int(task.batches.counts[0])
    x, y = task.rows.at(task.batches.rows[0, :n])
    before = {name: (b._version, b.clone()) for name, b in probed.named_buffers()}
    frozen = {name: p.detach().clone() for name, p in probed.named_parameters() if not p.requires_grad}
    state, functions = ModuleState(probed), _Watcher()
    with seeded(0, []):
        drawn = Drawn()
        loss, _ = BatchLoss(task.recipe, functions)(probed, x, y, torch.tensor(int(task.batches.draws[0])))
        has_plain_gradients = not functions.is_watched and _has_plain_gradients(loss)
        loss.backward()
        draws = bool(drawn)
    trained = tuple(n for n, p in probed.named_parameters() if p.requires_grad and p.grad is not None)
    changed = [n for n, b in probed.named_buffers() if not n.endswith(KEY) and _has_changed(b, *before[n])]
    own = {id(t): name for name, t in [*probed.named_parameters(), *probed.named_buffers()]}
    names = {name: own[id(t)] for name, t in probed.state_dict(keep_vars=True).items()}
    lost = [f"buffer {quoted(name)}" for name in sorted(set(changed) - set(names.values()))]
    now = dict(probed.named_parameters())
    lost += [f"parameter {quoted(name)}" for name, p in frozen.items() if not torch.equal(p, now[name])]
    return ModelTraits(
        names,
        trained,
        tuple(changed),
        _refusal(task.recipe, trained, draws, lost, state.changed()) or _hook_on(probed),
        any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in probed.modules()),
        draws,
        functions.is_used,
        has_plain_gradients,
    )


class _Watcher(ReplacedFunctions):
    """Replaced functions that note whether autograd itself is asked for or acted on."""

    is_watched = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.is_watched = self.is_watched or func in WATCHED
        return super().__torch_function__(func, types, args, kwargs)


def _has_plain_gradients(loss: Tensor) -> bool:
    """Are all operations that the loss came from among PLAIN?"""
    waiting, seen = [loss.grad_fn], set()
    while waiting:
        node: Any = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        is_leaf = type(node).__name__ == "AccumulateGrad"
        if not is_leaf and node.name() not in PLAIN and not _is_plain_embedding(node):
            return False
        waiting += [other for other, _ in node.next_functions]
    return True


def _is_plain_embedding(node: Any) -> bool:
    if node.name() != "EmbeddingBackward0":
        return False
    padding = node._saved_padding_idx
    return not node._saved_scale_grad_by_freq and (padding < 0 or padding >= 1 << 63)  # -1 without a sign


def form_of(traits: ModelTraits, tasks: list[ClientTask]) -> StepForm:
    """The form of a fused step that serves all ``tasks``."""
    recipes = [task.recipe for task in tasks]
    own = dict.fromkeys(traits.names.values())
    known = {*traits.trained, *traits.changing}
    return StepForm(
        trained=traits.trained,
        frozen=tuple(name for name in own if name not in known),
        buffers=traits.changing,
        optimizer=type(recipes[0].optimizer).form([r.optimizer for r in recipes]),  # pyrefly: ignore
        prox=any(r.prox for r in recipes),
        correction=any(task.correction is not None for task in tasks),
        shares_frozen=_share(tasks, [name for name, own in traits.names.items() if own not in known]),
        replaces=traits.replaces,
    )


def _share(tasks: list[ClientTask], names: list[str]) -> bool:
    """Do all tasks start with the very same tensors of these names?"""
    first = tasks[0].start
    others = {id(task.start): task.start for task in tasks if task.start is not first}.values()
    return all(start[name] is first[name] for start in others for name in names)


def _refusal(
    recipe: Recipe, trained: tuple[str, ...], draws: bool, lost: list[str], changed: str | None
) -> str | None:
    if recipe.step is not None:
        return "the recipe has a step function of its own"
    if (reason := getattr(recipe.optimizer, "why_not_fused", None)) is not None:
        return reason
    if not trained:
        return "no parameter gets a gradient"
    if draws:
        return "the model draws random numbers by itself, in ways that cannot be counted by client"
    if lost:
        return f"{lost[0]} changes in training, and is not trained or not in the state dict"
    if changed:
        return f"{changed} changes in training: clients in one step would share it"
    return None


def _hook_on(model: nn.Module) -> str | None:
    name = next((name for name, _, _ in hooks_of(model)), None)
    return None if name is None else f"parameter {quoted(name)} has a hook on its gradient"


def _has_changed(buffer: Tensor, version: int, value: Tensor) -> bool:
    """Was it written? Compared by value, too: kernels of batch normalisation do not count as writes."""
    return buffer._version != version or not torch.equal(buffer, value)
