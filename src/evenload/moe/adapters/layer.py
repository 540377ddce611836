"""A mixture-of-experts layer in plain PyTorch whose experts may have several copies, routed by a ``Planner``.

    x ──► gate ──► expert ids ──► planner.run ──► slots ──► each slot's feed-forward ──► weighted sum

Each physical slot has weights of its own, as on a real fleet. Copies start alike and stay alike: in the
backward pass each copy's gradient becomes the sum over the expert's copies, as an all-reduce between their
GPUs would do it. So the layer learns what it would learn without copies, up to the rounding of sums in
another order.
"""

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from evenload._optional import require
from evenload.errors import ConfigError, EvenloadError
from evenload.moe.routing.dispatch import without_padding

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from evenload.moe.routing.planner import Planner
else:
    torch = require("torch", extra="moe", why="MoELayer")
    nn = torch.nn


class _SharedGradient(torch.autograd.Function):
    """The identity of weights [slots, ...]; backwards, the sum of the gradients of each expert's copies.

    It is linear, so that any number of backward passes may add up.
    """

    @staticmethod
    def forward(ctx: Any, weight: "Tensor", phy2log: "Tensor", n_experts: int) -> "Tensor":
        ctx.phy2log, ctx.n_experts = phy2log.clone(), n_experts  # experts may move before the backward pass
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, None, None]:
        (gradient,) = gradients
        total = gradient.new_zeros((ctx.n_experts, *gradient.shape[1:]))
        return total.index_add(0, ctx.phy2log, gradient)[ctx.phy2log], None, None


class MoELayer(nn.Module):
    """A layer of feed-forward experts, ``w2(silu(w1 x))`` each, of which every token uses ``top_k``.

    width      of the tokens;  hidden  of an expert
    n_experts  that the gate chooses ``top_k`` of
    planner    routes ids to its ``n_routed_experts`` slots; None: one slot for each expert, no routing
    seed       of the weights: the same seed gives the same experts, whatever the planner

    ``slots`` [tokens, top-k] are those of the last forward pass. The state dict holds the placement
    (``phy2log``), and the planner takes it over when one is loaded; over a group, loading is a collective.
    """

    phy2log: "Tensor"  # [slots] the expert in each

    def __init__(
        self,
        width: int,
        hidden: int,
        n_experts: int,
        top_k: int,
        planner: "Planner | None" = None,
        seed: int = 0,
    ):
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        draw = lambda *shape: torch.randn(*shape, generator=random) * shape[-2] ** -0.5  # noqa: E731
        self.gate = nn.Parameter(draw(width, n_experts))
        first, second = draw(n_experts, width, hidden), draw(n_experts, hidden, width)
        self.top_k, self.planner, self.n_experts = top_k, planner, n_experts
        held = torch.arange(n_experts) if planner is None else planner.phy2log.clone()
        self.register_buffer("phy2log", held)
        self.w1, self.w2 = nn.Parameter(first[held]), nn.Parameter(second[held])
        self._mapping = None if planner is None else planner.phy2log
        self.register_load_state_dict_post_hook(_adopt_placement)
        self.slots: Tensor = torch.empty(0, top_k, dtype=torch.int64)

    def forward(self, x: "Tensor", mask: "Tensor | None" = None) -> "Tensor":
        """[..., width] to the same shape. Over a group, every rank must call it, with tokens or without.

        mask  [...] truth values: False for padding, which goes to no expert and comes back as zeros, whatever
              it holds

        Raises ConfigError for another mask, or if the planner's placement was changed by other means than
        ``rearrange``. If one rank of a group raises, all do.
        """
        try:
            tokens, weight, ids = self._choose(x, mask)
        except Exception:
            if self.planner is not None:
                with suppress(EvenloadError):  # the others wait for this rank: these are no ids
                    self.planner.run(torch.zeros(1, device=getattr(x, "device", "cpu")))
            raise
        self.slots = self._route(ids)
        w1, w2 = (_SharedGradient.apply(w, self.phy2log, self.n_experts) for w in (self.w1, self.w2))
        token = torch.arange(len(tokens), device=x.device).repeat_interleave(self.top_k)
        slot, scale = self.slots.reshape(-1), weight.reshape(-1, 1)
        # Adds zero, and so every parameter has a gradient even where there are no tokens.
        out = torch.zeros_like(tokens) + (w1[:0].sum() + w2[:0].sum() + weight[:0].sum())
        for one in torch.unique(slot[slot >= 0]).tolist():
            mine = (slot == one).nonzero().squeeze(1)
            hidden = nn.functional.silu(tokens[token[mine]] @ w1[one])
            out = out.index_add(0, token[mine], scale[mine] * (hidden @ w2[one]))
        return out.reshape(x.shape)

    def _choose(self, x: "Tensor", mask: Any) -> "tuple[Tensor, Tensor, Tensor]":
        """The tokens, and the weight and id of each one's experts; padding as zeros, and ids of -1."""
        tokens, flags = x.reshape(-1, x.shape[-1]), None
        if mask is not None:
            places = torch.zeros(x.shape[:-1], dtype=torch.int64, device=x.device)
            flags = (without_padding(places, mask) == 0).reshape(-1, 1)
            tokens = torch.where(flags, tokens, 0)
        weight, ids = torch.softmax(tokens @ self.gate, dim=-1).topk(self.top_k, dim=-1)
        return tokens, weight, ids if flags is None else torch.where(flags, ids, -1)

    def _route(self, ids: "Tensor") -> "Tensor":
        if self.planner is None:
            return torch.where(ids >= 0, torch.argsort(self.phy2log)[ids.clamp(min=0)], -1)
        if self.planner.phy2log is not self._mapping:
            raise ConfigError(
                "the planner placed its experts anew, and the layer's weights were not moved",
                hint="call rearrange of the layer instead of update_redundancy_mapping",
            )
        return self.planner.run(ids)

    def loads(self) -> "Tensor":
        """[ranks] ids that the last forward pass sent to each rank's slots."""
        ranks = 1 if self.planner is None else self.planner.ep_size
        used = self.slots[self.slots >= 0]
        return torch.bincount(used, minlength=len(self.phy2log)).reshape(ranks, -1).sum(1)

    def rearrange(self, load: Any, *others: "Tensor") -> None:
        """Let the planner place its experts anew for ``load`` [experts], and move the weights to match.

        others  tensors [slots, ...] that belong to the weights, such as an optimizer's moments; moved in
                place
        """
        if self.planner is None:
            raise ConfigError(
                "a layer without a planner has one place for each expert", hint="give a planner"
            )
        n_slots = len(self.phy2log)
        odd = [tuple(one.shape) for one in others if one.ndim == 0 or len(one) != n_slots]
        if odd:
            raise ConfigError(
                f"tensors of shapes {odd} beside {n_slots} slots", hint="give tensors [slots, ...], as w1 is"
            )
        source = torch.empty(self.n_experts, dtype=torch.int64)
        held = self.phy2log.cpu()
        source[held] = torch.arange(n_slots)
        placed = self.planner.update_redundancy_mapping(load)[0]
        self._mapping = placed
        self.phy2log.copy_(placed)
        moved = source[placed].to(self.phy2log.device)
        with torch.no_grad():
            for tensor in (self.w1, self.w2, *others):
                tensor.copy_(tensor[moved])


def _adopt_placement(layer: MoELayer, incompatible_keys: Any) -> None:
    """Give the planner the placement that was loaded."""
    if layer.planner is not None:
        layer._mapping = layer.planner.restore_mapping(layer.phy2log)[0]
