"""Two small trainings: a transformer that continues sequences, and a classifier of pictures. Data is made."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

N_SAMPLES = 4096
WORDS, LENGTH = 32, 16
SIDE, N_CLASSES = 12, 4


class Transformer(nn.Module):
    """Predicts each next word of a sequence."""

    def __init__(self, width: int = 32, n_layers: int = 2) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Parameter(torch.zeros(LENGTH, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, n_layers, enable_nested_tensor=False)
        self.last = nn.Linear(width, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1], device=words.device)
        return self.last(self.layers(self.words(words) + self.places, mask=mask, is_causal=True))


def sequences() -> TensorDataset:
    """Sequences whose words mostly follow from the two before them, and the same one word later."""
    rng = torch.Generator().manual_seed(0)
    words = torch.randint(WORDS, (N_SAMPLES, LENGTH + 1), generator=rng)
    for at in range(2, LENGTH + 1):
        follows = torch.rand(N_SAMPLES, generator=rng) < 0.9
        words[:, at] = torch.where(follows, (words[:, at - 1] + words[:, at - 2]) % WORDS, words[:, at])
    return TensorDataset(words[:, :-1], words[:, 1:])


def classifier() -> nn.Module:
    """A convolutional classifier. Its GroupNorm looks at one picture; BatchNorm would need SyncBatchNorm."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(32, N_CLASSES),
    )  # fmt: skip


def pictures() -> TensorDataset:
    """Noisy pictures of a bar: level, upright, or along one of the diagonals."""
    rng = torch.Generator().manual_seed(0)
    kinds = torch.randint(N_CLASSES, (N_SAMPLES,), generator=rng)
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    along = torch.stack([y, x, (y - x) % SIDE, (y + x) % SIDE])
    where = torch.randint(2, SIDE - 2, (N_SAMPLES, 1, 1), generator=rng)
    bars = (along[kinds] - where).abs() < 2
    noise = torch.randn(N_SAMPLES, SIDE, SIDE, generator=rng)
    return TensorDataset((bars + 0.5 * noise).unsqueeze(1), kinds)


def loss_of(outputs: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
    """The mean loss over samples, and over the words of each."""
    return cross_entropy(outputs.flatten(0, -2), answers.flatten())


TASKS = {"transformer": (Transformer, sequences), "pictures": (classifier, pictures)}
