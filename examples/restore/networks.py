"""The two small networks of the example: a denoiser and a no-reference judge of noise.

``Denoiser``    picture [n, 3, h, w] -> restored picture [n, 3, h, w]
``NoiseJudge``  picture [n, 3, h, w] -> estimated standard deviation of the noise [n]

Pictures are float32 in 0..1, of any height and width from 16 pixels on.
"""

from pathlib import Path
from typing import TypeVar

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

WEIGHTS = Path(__file__).parent / "weights"
N = TypeVar("N", bound=nn.Module)


class Denoiser(nn.Module):
    """Blind residual denoiser, at half resolution for speed.

    Without any bias the network scales with its input, so that one set of weights serves every noise level.
    Sources: FFDNet (Zhang, Zuo, Zhang, TIP 2018) for working on 2x2 pixels at once; Mohan, Kadkhodaie,
    Simoncelli, Fernandez-Granda, "Robust and interpretable blind image denoising via bias-free CNNs",
    ICLR 2020, for leaving the biases out.
    """

    def __init__(self, channels: int = 40, n_blocks: int = 4):
        super().__init__()
        self.enter = nn.Conv2d(12, channels, 3, padding=1, bias=False)
        self.blocks = nn.ModuleList(_Block(channels) for _ in range(n_blocks))
        self.leave = nn.Conv2d(channels, 12, 3, padding=1, bias=False)
        nn.init.zeros_(self.leave.weight)  # starts as the identity

    def forward(self, picture: Tensor) -> Tensor:
        height, width = picture.shape[-2:]
        padded = F.pad(picture, (0, width % 2, 0, height % 2), mode="replicate")
        features = self.enter(F.pixel_unshuffle(padded, 2))
        for block in self.blocks:
            features = block(features)
        noise = F.pixel_shuffle(self.leave(F.relu(features)), 2)
        return picture - noise[..., :height, :width]


class _Block(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        return features + self.second(F.relu(self.first(F.relu(features))))


class NoiseJudge(nn.Module):
    """Says how much noise a picture has, without seeing the clean one.

    Learned high-pass filters give an energy for each window; each window says a noise level and how much it
    may be trusted (flat, unclipped windows show the noise best); the trusted mean is the answer.
    """

    def __init__(self, n_filters: int = 24, hidden: int = 32, window: int = 8):
        super().__init__()
        self.window = window
        self.filters = nn.Conv2d(3, n_filters, 5, bias=False)
        self.read = nn.Sequential(
            nn.Conv2d(n_filters + 3, hidden, 1),
            nn.ReLU(),
            nn.Conv2d(hidden, hidden, 1),
            nn.ReLU(),
            nn.Conv2d(hidden, 2, 1),
        )

    def forward(self, picture: Tensor) -> Tensor:
        filters = self.filters.weight - self.filters.weight.mean(
            dim=(2, 3), keepdim=True
        )  # blind to brightness
        energy = F.avg_pool2d(F.conv2d(picture, filters).square(), self.window, stride=self.window // 2)
        brightness = F.avg_pool2d(picture[..., 2:-2, 2:-2], self.window, stride=self.window // 2)
        log_level, trust = self.read(torch.cat([torch.log(energy + 1e-6) / 4, brightness], dim=1)).unbind(
            dim=1
        )
        weight = torch.softmax(trust.flatten(1), dim=1)
        return torch.exp((weight * log_level.flatten(1)).sum(dim=1) - 3)


def quality(noise_level: float) -> float:
    """Score in 0..1 from a noise level: 1 for a clean picture, 1/2 at a standard deviation of 0.1."""
    return 2.0 ** (-noise_level / 0.1)


def save(network: nn.Module, path: Path) -> None:
    """Write weights as float16 safetensors (half the size; the loss is far below the noise)."""
    save_file(
        {name: tensor.detach().half().contiguous() for name, tensor in network.state_dict().items()}, path
    )


def load(network: N, path: Path) -> N:
    """Read weights written by ``save`` into ``network``, which is returned in evaluation mode."""
    network.load_state_dict({name: tensor.float() for name, tensor in load_file(path).items()})
    return network.eval()
