"""Which settings of a processor leave the weights of exact=True as they are, and are the others refused?

    python benchmarks/exact_levels.py [--steps 10]

Ranks have the same bits if they compute a grain alike. Each setting trains the same models in a process of
its own, on one rank; "other" are weights that differ from those without a setting. "told" says whether ranks
with and without it refuse each other, as they ought to where anything is other. Levels of oneDNN above this
processor's own change nothing; torch, told of one, runs instructions that are not there, and dies. Speed is
not measured: other programs may run meanwhile.
"""

import argparse
import json
import os
import subprocess
import sys
from typing import Any

SETTINGS: tuple[dict[str, str], ...] = (
    {},
    {"ATEN_CPU_CAPABILITY": "avx2"},
    {"ATEN_CPU_CAPABILITY": "default"},
    {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_AMX"},
    {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"},
    {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
    {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    {"ONEDNN_MAX_CPU_ISA": "AVX"},
    {"ONEDNN_MAX_CPU_ISA": "SSE41"},
    {"MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
    {"MKL_CBWR": "COMPATIBLE"},
    {"threads": "2"},
)
SHAPES, TYPES = ("mlp", "conv", "attention"), ("float32", "bfloat16")


def model_of(shape: str) -> Any:
    import torch
    from torch import nn

    torch.manual_seed(0)
    if shape == "mlp":
        return nn.Sequential(nn.Linear(192, 384), nn.Tanh(), nn.Linear(384, 10))
    if shape == "conv":
        layers = (
            nn.Unflatten(1, (3, 8, 8)),
            nn.Conv2d(3, 16, 3),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3),
            nn.Flatten(),
        )
        return nn.Sequential(*layers, nn.Linear(512, 10))
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    parts = nn.Linear(16, 64), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Flatten()
    return nn.Sequential(nn.Unflatten(1, (12, 16)), *parts, nn.Linear(12 * 64, 10))


def weights(shape: str, dtype: str, n_steps: int) -> str:
    """Train for some steps; the digest of the weights."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from evenload.training import EvenBatches
    from evenload.training.passes.grain_gradient import digest_of

    made = torch.Generator().manual_seed(1)
    x = torch.randn(32 * n_steps, 192, generator=made).to(getattr(torch, dtype))
    dataset = TensorDataset(x, torch.randint(10, (len(x),), generator=made))
    model = model_of(shape).to(x.dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    even = EvenBatches(dataset, global_batch=32, micro_batch=8, exact=True)
    for step in even.steps(DataLoader(dataset, batch_sampler=even), model):
        for inputs, labels in step:
            even.scale(torch.nn.functional.cross_entropy(model(inputs), labels)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return digest_of(model)


def trained(n_steps: int, threads: int) -> dict[str, Any]:
    """What a process with a setting finds."""
    import torch

    from evenload.training.passes.grain_gradient import kernels

    torch.set_num_threads(threads)
    found = {f"{shape} {dtype}": weights(shape, dtype, n_steps) for dtype in TYPES for shape in SHAPES}
    return {"weights": found, "kernels": kernels(torch.device("cpu"))}


def with_setting(setting: dict[str, str], n_steps: int) -> dict[str, Any]:
    known = {name for one in SETTINGS for name in one}
    kept = {name: value for name, value in os.environ.items() if name not in known}
    command = [sys.executable, __file__, "--steps", str(n_steps), "--trained", setting.get("threads", "1")]
    done = subprocess.run(command, env={**kept, **setting}, capture_output=True, text=True, timeout=1800)
    if done.returncode:
        raise SystemExit(f"{setting}: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--trained", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.trained:
        print(json.dumps(trained(given.steps, given.trained)))
        return
    from record import record

    rows, usual = [], with_setting({}, given.steps)
    for setting in SETTINGS:
        found = with_setting(setting, given.steps)
        same = {
            kind: "same" if one == usual["weights"][kind] else "other"
            for kind, one in found["weights"].items()
        }
        is_told = found["kernels"] != usual["kernels"]
        name = " ".join(f"{key}={value}" for key, value in setting.items()) or "the same again"
        n_other = sum(one == "other" for one in same.values())
        rows.append({"setting": name, **same, "n_other": n_other, "told": "yes" if is_told else "no"})
        print(rows[-1], flush=True)
    record("exact_levels", rows, is_of_speed=False, steps=given.steps, kernels=usual["kernels"])


if __name__ == "__main__":
    main()
