"""Train a small mixture-of-experts model twice: plainly, and with redundant experts routed by a Planner.

    python examples/moe/train.py

Both learn to continue sequences of a made-up language of a few topics, whose tokens keep some experts busier
than others. The second one has four ranks of three slots for its eight experts; each batch is routed so that
the busiest rank does the least possible, and twice the experts are placed anew while training goes on. The
losses must be the same up to the rounding of sums in another order: a copy is the same expert, wherever it
is.
"""

import argparse

import numpy as np
import torch
from torch import nn

from evenload.moe import Planner, create_redundant_mapping
from evenload.moe.adapters.layer import MoELayer

N_EXPERTS, N_SLOTS, TOP_K = 8, 12, 2
VOCABULARY, WIDTH, HIDDEN, N_TOPICS = 64, 32, 48, 5


class Model(nn.Module):
    """The next token from the last two: embeddings, one mixture-of-experts layer, a linear read-out."""

    def __init__(self, planner: Planner | None):
        super().__init__()
        random = torch.Generator().manual_seed(1)
        self.embed = nn.Parameter(torch.randn(2, VOCABULARY, WIDTH, generator=random))
        self.moe = MoELayer(WIDTH, HIDDEN, N_EXPERTS, TOP_K, planner, seed=2)
        self.read = nn.Parameter(torch.randn(WIDTH, VOCABULARY, generator=random) * WIDTH**-0.5)

    def forward(self, pairs: torch.Tensor) -> torch.Tensor:
        x = self.embed[0, pairs[:, 0]] + self.embed[1, pairs[:, 1]]
        return (x + self.moe(x)) @ self.read


def batches(n_batches: int, n_tokens: int):
    """(pairs [tokens, 2], next token [tokens]) drawn from topics of unequal frequency."""
    random = np.random.default_rng(0)
    follow = random.dirichlet(np.full(VOCABULARY, 0.05), (N_TOPICS, VOCABULARY))
    topics = random.dirichlet(np.full(N_TOPICS, 1.5))
    for _ in range(n_batches):
        topic = random.choice(N_TOPICS, n_tokens, p=topics)
        tokens = [topic * VOCABULARY // N_TOPICS]
        for _ in range(2):
            odds = follow[topic, tokens[-1]].cumsum(axis=1)
            tokens.append((odds < random.random((n_tokens, 1))).sum(axis=1).clip(0, VOCABULARY - 1))
        first, second, third = (torch.from_numpy(one) for one in tokens)
        yield torch.stack([first, second], dim=1), third


def train(planner: Planner | None, n_steps: int, n_tokens: int) -> tuple[list[float], list[float]]:
    """Loss and imbalance (busiest rank over mean) of each step."""
    model = Model(planner).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses, uneven, seen = [], [], np.zeros(N_EXPERTS)
    for step, (pairs, following) in enumerate(batches(n_steps, n_tokens)):
        loss = nn.functional.cross_entropy(model(pairs), following)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        layer = model.moe
        seen += np.bincount(layer.phy2log[layer.slots].reshape(-1), minlength=N_EXPERTS)
        loads = layer.loads() if planner else torch.bincount(layer.slots.reshape(-1) // 2, minlength=4)
        uneven.append(float(loads.max() / loads.double().mean()))
        if planner and step in (n_steps // 3, 2 * n_steps // 3):
            weights = (layer.w1, layer.w2)
            layer.rearrange(
                seen, *(optimizer.state[w][key] for w in weights for key in ("exp_avg", "exp_avg_sq"))
            )
    return losses, uneven


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--tokens", type=int, default=512, help="in a batch")
    options = parser.parse_args()
    torch.set_num_threads(1)

    planner = Planner(create_redundant_mapping(N_EXPERTS, N_SLOTS), N_SLOTS, N_EXPERTS)
    routed, even = train(planner, options.steps, options.tokens)
    plain, uneven = train(None, options.steps, options.tokens)

    print("step     loss, plain    loss, routed   busiest rank, plain   routed")
    for step in range(0, options.steps, max(1, options.steps // 6)):
        print(f"{step:4}  {plain[step]:14.9f}  {routed[step]:14.9f}  {uneven[step]:19.3f}  {even[step]:7.3f}")
    apart = max(abs(a - b) / b for a, b in zip(routed, plain, strict=True))
    print(f"largest relative difference of any loss: {apart:.1e}")
    print(f"busiest rank over the mean: {np.mean(uneven):.3f} plain, {np.mean(even):.3f} routed")
    if apart > 1e-6:
        raise SystemExit("the losses differ by more than rounding")


if __name__ == "__main__":
    main()
