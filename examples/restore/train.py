"""Train both networks on procedural pictures and write weights/*.safetensors.

    python examples/restore/train.py                     # about ten CPU-minutes, the committed weights
    python examples/restore/train.py --steps 50 -o /tmp  # a quick look

One thread and fixed seeds: the same machine and torch version give the same weights. No photograph is used;
the figures that it prints are on procedural pictures which training did not see.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from networks import WEIGHTS, Denoiser, NoiseJudge, load, save
from synthetic import picture
from torch import Tensor

N_PICTURES, N_HELD_OUT = 600, 40
HELD_OUT_SEED = 1_000_000
BATCH, CROP = 16, 48
LARGEST_NOISE = 0.25


def train(
    n_steps: int, seed: int, n_pictures: int = N_PICTURES, report_every: int = 250
) -> tuple[Denoiser, NoiseJudge]:
    """Train for ``n_steps`` batches on ``n_pictures``; equal arguments give equal networks."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    pictures = _pictures(range(n_pictures))
    denoiser = Denoiser()
    denoiser.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    judge = NoiseJudge()
    optimizers = [torch.optim.Adam(denoiser.parameters(), 2e-3), torch.optim.Adam(judge.parameters(), 4e-3)]
    schedules = [torch.optim.lr_scheduler.OneCycleLR(o, o.defaults["lr"], n_steps) for o in optimizers]
    began = time.process_time()
    for step in range(1, n_steps + 1):
        clean, noised, level = _batch(pictures, generator)
        error = (denoiser(noised) - clean).square().mean(dim=(1, 2, 3))
        restoring = torch.log(error + 1e-5).mean()  # the mean PSNR, so that every noise level counts alike
        judging = (torch.log(judge(noised) + 0.01) - torch.log(level + 0.01)).abs().mean()
        for optimizer, schedule, loss in zip(optimizers, schedules, (restoring, judging), strict=True):
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0)
            optimizer.step()
            schedule.step()
        if step % report_every == 0 or step == n_steps:
            psnr_db = -4.343 * restoring.item()
            cpu_s = time.process_time() - began
            print(
                f"step {step}/{n_steps}  PSNR {psnr_db:.2f} dB  judge {judging.item():.3f}  {cpu_s:.0f} CPU-s"
            )
    return denoiser.eval(), judge.eval()


def _pictures(seeds: range) -> Tensor:
    """uint8 [n, 3, SIZE, SIZE]"""
    return torch.from_numpy(np.stack([picture(seed) for seed in seeds])).permute(0, 3, 1, 2).contiguous()


def _batch(pictures: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Clean crops [BATCH, 3, CROP, CROP], noised ones, and the noise level of each [BATCH]."""
    chosen = torch.randint(len(pictures), (BATCH,), generator=generator).tolist()
    corners = torch.randint(pictures.shape[-1] - CROP + 1, (BATCH, 2), generator=generator).tolist()
    turns = torch.randint(8, (BATCH,), generator=generator).tolist()
    crops = [
        _turned(pictures[i, :, y : y + CROP, x : x + CROP], turn)
        for i, (y, x), turn in zip(chosen, corners, turns, strict=True)
    ]
    clean = torch.stack(crops).float().div_(255)
    level = LARGEST_NOISE * torch.rand(BATCH, generator=generator)
    noise = torch.randn(clean.shape, generator=generator)
    noised = (clean + level[:, None, None, None] * noise).clamp_(0, 1)
    return clean, noised.contiguous(memory_format=torch.channels_last), level


def _turned(crop: Tensor, turn: int) -> Tensor:
    turned = torch.rot90(crop, turn % 4, dims=(1, 2))
    return turned.flip(2) if turn >= 4 else turned


@torch.inference_mode()
def figures(denoiser: Denoiser, judge: NoiseJudge, n_pictures: int = N_HELD_OUT) -> dict[str, float]:
    """PSNR gain in dB at three noise levels, and the judge's mean error, on held-out procedural pictures."""
    clean = _pictures(range(HELD_OUT_SEED, HELD_OUT_SEED + n_pictures)).float() / 255
    found = {}
    for level in (0.05, 0.1, 0.15):
        noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(HELD_OUT_SEED))
        noised = (clean + level * noise).clamp(0, 1)
        found[f"gain_db_at_{level}"] = (
            (_psnr_db(denoiser(noised), clean) - _psnr_db(noised, clean)).mean().item()
        )
        found[f"judge_error_at_{level}"] = (judge(noised) - level).abs().mean().item()
    return found


def _psnr_db(picture: Tensor, clean: Tensor) -> Tensor:
    return -10 * torch.log10((picture.clamp(0, 1) - clean).square().mean(dim=(1, 2, 3)))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=6500)
    parser.add_argument("--pictures", type=int, default=N_PICTURES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--out", type=Path, default=WEIGHTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    began = time.process_time()
    denoiser, judge = train(options.steps, options.seed, options.pictures)
    options.out.mkdir(parents=True, exist_ok=True)
    for network, name in ((denoiser, "denoiser"), (judge, "judge")):
        path = options.out / f"{name}.safetensors"
        save(network, path)
        print(f"{path}: {path.stat().st_size / 1024:.0f} KiB")
    denoiser = load(Denoiser(), options.out / "denoiser.safetensors")
    judge = load(NoiseJudge(), options.out / "judge.safetensors")
    for name, value in figures(denoiser, judge, min(options.pictures, N_HELD_OUT)).items():
        print(f"{name} {value:.3f}")
    print(f"{time.process_time() - began:.0f} CPU-s")


if __name__ == "__main__":
    main()
