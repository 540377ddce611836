"""Let vLLM 0.32 balance experts on a CPU, and write down what it plans; for the tests of a whole engine.

Imported by every process of the engine before vLLM (a ``.pth`` file in its environment says so). vLLM's CPU
build has all of its balancing; seven places ask for a GPU, and each is changed as its module is imported:

    vllm.platforms.cpu                   the configuration refuses to balance where there is no GPU
    vllm.v1.worker.cpu_model_runner      the runner on a CPU makes no state of the balancing
    ...fused_moe.experts.cpu_moe         the kernel knows no map from all experts to those of this rank
    ...fused_moe.router.base_router      the choice of a copy is a kernel of Triton
    vllm.v1.worker.cpu.shm               events have no time
    ...eplb.rebalance_execute            exchanges wait for streams
    ...eplb.async_worker                 the asynchronous mode's thread has a device and a stream

An eighth is not changed but listened to: each call of the policy, with the loads and the map that it was
given, its answer, and that of vLLM's own policy to the same, goes to the file that ENGINE_RECORD names, by
rank.
"""

import importlib.abc
import importlib.util
import inspect
import json
import os
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

KNUTH = 2654435769  # vLLM's kernel chooses a token's copy by this multiple of its place


def allow_balancing(module: ModuleType) -> None:
    """The platform is taken for one with kernels of Triton by the check of the configuration alone."""

    def is_xpu(_: Any = None) -> bool:
        return sys._getframe(1).f_globals.get("__name__") == "vllm.config.parallel"

    module.CpuPlatform.is_xpu = is_xpu


def make_state(module: ModuleType) -> None:
    """The runner makes the balancing's state once the model is loaded, as the one of GPUs does."""
    load = module.CPUModelRunner.load_model

    def load_model(self: Any, *arguments: Any, **named: Any) -> None:
        load(self, *arguments, **named)
        if self.parallel_config.enable_eplb:
            from vllm.distributed.eplb.eplb_state import EplbState  # pyrefly: ignore

            self._moe_model = self.model
            self.eplb_state = EplbState(self.parallel_config, self.device)
            self.eplb_state.add_model(self.model, self.model_config)
            self.eplb_state.device_index = 0
            self.eplb_state.start_async_loop()  # which does nothing in the synchronous mode

    module.CPUModelRunner.load_model = load_model


def know_local_experts(module: ModuleType) -> None:
    """Experts of other ranks weigh nothing here; the others go by their place on this rank."""

    def local(apply: Callable[..., Any]) -> Callable[..., Any]:
        form = inspect.signature(apply)

        def with_local_ids(*arguments: Any, **named: Any) -> Any:
            bound = form.bind(*arguments, **named)
            given = bound.arguments
            where = given.get("expert_map")
            if where is not None:
                ids = where[given["topk_ids"].long()]
                given["topk_weights"] = given["topk_weights"] * (ids >= 0)
                given["topk_ids"] = ids.clamp(min=0).to(given["topk_ids"].dtype)
                given["expert_map"] = None
            return apply(*bound.args, **bound.kwargs)

        return with_local_ids

    for kind in list(vars(module).values()):
        apply = vars(kind).get("apply") if inspect.isclass(kind) else None
        if apply is not None and "expert_map" in inspect.signature(apply).parameters:
            kind.apply = local(apply)


def choose_copies(module: ModuleType) -> None:
    """The kernel's choice in plain torch: an expert's copies in turn, by a hash of the token's place."""
    import torch

    def map_and_record(
        topk_ids: Any,
        expert_load_view: Any,
        logical_to_physical_map: Any,
        logical_replica_count: Any,
        record_enabled: Any,
        num_unpadded_tokens: Any = None,
    ) -> Any:
        ids = topk_ids.long()
        place = torch.arange(len(ids), device=ids.device)[:, None]
        copy = (place * KNUTH & 0xFFFFFFFF) % logical_replica_count[ids].clamp(min=1)
        slots = logical_to_physical_map[ids, copy]
        if bool(record_enabled):
            told = slots if num_unpadded_tokens is None else slots[: int(num_unpadded_tokens)]
            expert_load_view += torch.bincount(told.flatten().long(), minlength=len(expert_load_view)).to(
                expert_load_view.dtype
            )
        return slots.to(topk_ids.dtype)

    module.eplb_map_to_physical_and_record = map_and_record


def time_nothing(module: ModuleType) -> None:
    module._EventPlaceholder.elapsed_time = lambda self, other: 0.0


def wait_for_no_stream(_: ModuleType) -> None:
    import torch

    for name in ("synchronize", "set_stream", "set_device_index", "current_accelerator"):
        setattr(torch.accelerator, name, lambda *_, **__: None)
    torch.accelerator.current_stream = Stream  # type: ignore[assignment]


def have_no_stream(module: ModuleType) -> None:
    import torch

    own = ModuleType("torch")
    vars(own).update(vars(torch), Stream=Stream)
    module.torch = own


class Stream:
    """A stream of a processor: what was asked for is done already."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def synchronize(self) -> None: ...

    def wait_stream(self, other: Any) -> None: ...


def record_plans(module: ModuleType) -> None:
    """Write down each answer of the policy that the engine has chosen, and vLLM's own beside it."""
    add_model = module.EplbState.add_model

    def with_record(self: Any, *arguments: Any, **named: Any) -> None:
        add_model(self, *arguments, **named)  # which chooses the policy
        self.policy = recorded(self.policy, module.get_ep_group().device_group.rank())

    module.EplbState.add_model = with_record


def recorded(policy: Any, rank: int) -> Any:
    from vllm.distributed.eplb.policy.default import DefaultEplbPolicy  # pyrefly: ignore
    from vllm.model_executor.layers.fused_moe.router import base_router  # pyrefly: ignore

    class Recorded(policy):  # type: ignore[misc]
        @classmethod
        def rebalance_experts(cls, weight: Any, *sizes: Any) -> Any:
            began = time.perf_counter()
            answer = policy.rebalance_experts(weight, *sizes)
            took_s = time.perf_counter() - began
            row = {
                "rank": rank,
                "pid": os.getpid(),
                "policy": [f"{one.__module__}.{one.__name__}" for one in policy.__mro__],
                "router": base_router.eplb_map_to_physical_and_record.__code__.co_filename,
                "took_s": took_s,
                "loads": weight.tolist(),
                "old": sizes[-1].tolist(),
                "new": answer.tolist(),
                "own": DefaultEplbPolicy.rebalance_experts(weight, *sizes).tolist(),
            }
            with open(f"{os.environ['ENGINE_RECORD']}.{rank}", "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            return answer

    return Recorded


CHANGES: dict[str, Callable[[ModuleType], None]] = {
    "vllm.platforms.cpu": allow_balancing,
    "vllm.v1.worker.cpu_model_runner": make_state,
    "vllm.model_executor.layers.fused_moe.experts.cpu_moe": know_local_experts,
    "vllm.model_executor.layers.fused_moe.router.base_router": choose_copies,
    "vllm.v1.worker.cpu.shm": time_nothing,
    "vllm.distributed.eplb.rebalance_execute": wait_for_no_stream,
    "vllm.distributed.eplb.async_worker": have_no_stream,
    "vllm.distributed.eplb.eplb_state": record_plans,
}


class Changes(importlib.abc.MetaPathFinder):
    """A finder that lets another find a module, and changes it once it has run."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in CHANGES:
            return None
        place = sys.meta_path.index(self)  # finders before it change a module after it
        del sys.meta_path[place]
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(place, self)
        if spec is not None and spec.loader is not None:
            run: Any = spec.loader.exec_module

            def then_change(module: ModuleType) -> None:
                run(module)
                CHANGES[name](module)

            spec.loader.exec_module = then_change
        return spec


if os.environ.get("ENGINE_RECORD"):
    sys.meta_path.insert(0, Changes())
