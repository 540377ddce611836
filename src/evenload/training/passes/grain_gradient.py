"""``GrainGradient``: the gradient of a step as an exact sum over grains, the same bits on any ranks.

    backward of a grain ──► its own gradient ──► ExactSums ──► (after the last) sum over ranks ──► p.grad

A grain is a micro-batch that starts at a multiple of its size: which samples it has follows from the global
batch alone. Its gradient comes out of the same kernels on the same shapes, whichever rank computes it.
"""

import hashlib
import os
from collections.abc import Callable
from typing import Any

from evenload._exact_sums import ExactSums
from evenload.errors import ConfigError

# By which oneDNN, torch's library of products and convolutions, chooses kernels that sum in another order.
INSTRUCTIONS = ("avx2", "avx_vnni", "avx_vnni_int8", "avx512_bw", "avx512_vnni", "avx512_bf16", "avx10_2",
                "avx512_fp16", "amx_int8", "amx_bf16", "amx_fp16", "bf16", "i8mm", "sve")  # fmt: skip
LIMITS = ("MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR")  # of torch's other library of products


class GrainGradient:
    """The gradients of a model's parameters, grain by grain.

    n_grains  of a global batch, over all ranks
    add_up    adds up a tensor over all ranks, in place

    Raises ConfigError for a sharded model, and for parameters on several devices or not of floating point.
    """

    def __init__(self, model: Any, n_grains: int, add_up: Callable[[Any], None]):
        self.model = plain(model)
        self._parameters = [one for one in self.model.parameters() if one.requires_grad]
        devices = {str(one.device) for one in self._parameters}
        if len(devices) != 1:
            raise ConfigError(
                f"parameters to train are on {len(devices)} devices", hint="exact=True needs them on one"
            )
        self._sums, self._add_up = ExactSums(self._parameters, n_grains), add_up
        self._held: list[Any] | None = None

    def facts(self) -> dict[str, Any]:
        """Return what every rank must have alike for the same bits: weights, kernels and their threads."""
        return {"weights": digest_of(self.model), **kernels(self._parameters[0].device)}

    def begin(self) -> None:
        """Put gradients aside that are there already, before the backward pass of a grain."""
        if self._held is None:
            self._held = [one.grad for one in self._parameters]
        for one in self._parameters:
            one.grad = None

    def add(self, *, counts: bool) -> None:
        """Take the gradient of a grain, after its backward pass; leave it out unless it ``counts``."""
        gradients = [one.grad for one in self._parameters]
        for one in self._parameters:
            one.grad = None
        if any(one is not None and one.layout != self._parameters[0].layout for one in gradients):
            raise ConfigError("a gradient is sparse", hint="use Embedding(sparse=False) with exact=True")
        if counts:
            self._sums.add(gradients)

    def finish(self) -> None:
        """Give parameters the sum over all grains of all ranks, on top of what was there before the step."""
        self._add_up(self._sums.buffer)
        held = self._held or [None] * len(self._parameters)
        for one, before, value in zip(self._parameters, held, self._sums.values(), strict=True):
            one.grad = value if before is None else before if value is None else before + value
        self._held = None
        self._sums.clear()

    def seed(self, seed: int, epoch: int, place: int) -> None:
        """Seed torch for a grain, so that its dropout is the same on whichever rank it is trained."""
        import torch

        found = hashlib.sha256(f"{seed}/{epoch}/{place}".encode()).digest()
        # torch.manual_seed writes down a traceback for each kind of device that is not in use: milliseconds.
        is_cpu = self._parameters[0].device.type == "cpu"
        give = torch.default_generator.manual_seed if is_cpu else torch.manual_seed
        give(int.from_bytes(found[:7], "big"))


def digest_of(model: Any) -> str:
    """Return the SHA-256 of a model's parameters and buffers: names, types, shapes and bits."""
    import torch

    found = hashlib.sha256()
    for name, one in plain(model).state_dict().items():
        if isinstance(one, torch.Tensor):
            add_tensor(found, name, one)
    return found.hexdigest()


def add_tensor(found: Any, name: str, tensor: Any) -> None:
    """Add a tensor's name, type, shape and bits to a digest of hashlib."""
    import torch

    found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
    found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def kernels(device: Any) -> dict[str, Any]:
    """Return what decides which kernels compute a grain, and how they cut sums."""
    import torch

    is_gpu = device.type == "cuda"
    found = getattr(torch.cpu, "get_capabilities", dict)()
    here = " ".join(name for name in INSTRUCTIONS if found.get(name))
    return {
        "torch": str(torch.__version__),
        "device": torch.cuda.get_device_name(device) if is_gpu else device.type,
        "processor level": torch.backends.cpu.get_cpu_capability(),
        "ONEDNN_MAX_CPU_ISA, or instructions": os.environ.get("ONEDNN_MAX_CPU_ISA", here).upper(),
        **{name: os.environ.get(name, "").upper() for name in LIMITS},
        "torch threads": torch.get_num_threads(),
    }


def plain(model: Any) -> Any:
    """Return a model out of DDP, which is kept from exchanges of its own. Raises ConfigError if sharded."""
    from torch.nn.parallel import DistributedDataParallel

    modules = list(model.modules()) if hasattr(model, "modules") else []
    if not modules or any(hasattr(one, "set_requires_gradient_sync") for one in modules):
        what = "sharded by fully_shard" if modules else f"a {type(model).__name__}"
        raise ConfigError(
            f"the model is {what}, and exact=True needs whole gradients",
            hint="give a torch.nn.Module, plain or in DistributedDataParallel",
        )
    for one in modules:
        if isinstance(one, DistributedDataParallel):
            one.require_backward_grad_sync = one.require_forward_param_sync = False
    return model.module if isinstance(model, DistributedDataParallel) else model
