"""A mixture-of-experts layer in plain PyTorch whose experts may have several copies, routed by a ``Planner``.

    x ──► gate ──► expert ids ──► planner.run ──► slots ──► each slot's feed-forward ──► weighted sum

Each physical slot has weights of its own, as on a real fleet. Copies start alike and stay alike: after the
backward pass each copy's gradient becomes the sum over the expert's copies, as an all-reduce between their
GPUs would do it. So the layer learns what it would learn without copies, up to the rounding of sums in
another order.
"""

from typing import TYPE_CHECKING, Any

from evenload._optional import require

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from evenload.moe.routing.planner import Planner
else:
    torch = require("torch", extra="torch", why="MoELayer")
    nn = torch.nn

__all__ = ["MoELayer"]


class MoELayer(nn.Module):
    """A layer of feed-forward experts, ``w2(silu(w1 x))`` each, of which every token uses ``top_k``.

    width      of the tokens;  hidden  of an expert
    n_experts  that the gate chooses ``top_k`` of
    planner    routes ids to its ``n_routed_experts`` slots; None: one slot for each expert, no routing
    seed       of the weights: the same seed gives the same experts, whatever the planner

    ``slots`` [tokens, top-k] are those of the last forward pass.
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
        for weight in (self.w1, self.w2):
            weight.register_post_accumulate_grad_hook(self._share_gradient)
        self.slots: Tensor = torch.empty(0, top_k, dtype=torch.int64)

    def forward(self, x: "Tensor") -> "Tensor":
        """[tokens, width] to [tokens, width]."""
        weight, ids = torch.softmax(x @ self.gate, dim=-1).topk(self.top_k, dim=-1)
        self.slots = ids if self.planner is None else self.planner.run(ids)
        token = torch.arange(len(x)).repeat_interleave(self.top_k)
        slot, scale = self.slots.reshape(-1), weight.reshape(-1, 1)
        out = torch.zeros_like(x)
        for one in torch.unique(slot).tolist():
            mine = (slot == one).nonzero().squeeze(1)
            hidden = nn.functional.silu(x[token[mine]] @ self.w1[one])
            out = out.index_add(0, token[mine], scale[mine] * (hidden @ self.w2[one]))
        return out

    def loads(self) -> "Tensor":
        """[ranks] ids that the last forward pass sent to each rank's slots."""
        ranks = 1 if self.planner is None else self.planner.ep_size
        return torch.bincount(self.slots.reshape(-1), minlength=len(self.phy2log)).reshape(ranks, -1).sum(1)

    def rearrange(self, load: Any, *others: "Tensor") -> None:
        """Let the planner place its experts anew for ``load`` [experts], and move the weights to match.

        others  tensors [slots, ...] that belong to the weights, such as an optimizer's moments; moved in
                place
        """
        assert self.planner is not None, "without a planner nothing moves"
        source = torch.empty(self.n_experts, dtype=torch.int64)
        source[self.phy2log] = torch.arange(len(self.phy2log))
        self.phy2log.copy_(self.planner.update_redundancy_mapping(load)[0])
        with torch.no_grad():
            for tensor in (self.w1, self.w2, *others):
                tensor.copy_(tensor[source[self.phy2log]])

    def _share_gradient(self, weight: "Tensor") -> None:
        gradient = weight.grad
        assert gradient is not None, "the hook runs once the gradient is there"
        total = gradient.new_zeros((self.n_experts, *gradient.shape[1:]))
        total.index_add_(0, self.phy2log, gradient)
        gradient.copy_(total[self.phy2log])
