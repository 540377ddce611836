"""A process of an engine: its real plugin loader, its real modules of balancing, and nothing of the rest.

    python engine_process.py vllm|sglang FOLDER

FOLDER holds the unpacked wheel. What its modules import besides is stood in for by mocks, so that neither a
GPU nor the engine's other packages are needed. The last line on stdout is a JSON object.
"""

import json
import logging
import sys
import types
from dataclasses import dataclass
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from unittest.mock import MagicMock

REAL = {
    "vllm": (
        "vllm.plugins", "vllm.envs", "vllm.distributed.eplb.policy", "vllm.distributed.eplb.eplb_state",
        "vllm.model_executor.layers.fused_moe.router.base_router",
    ),
    "sglang": ("sglang.srt.plugins", "sglang.srt.eplb", "sglang.srt.environ"),
}  # fmt: skip
OTHERS = ("einops",)  # packages that their modules import, and that need not be here
L, E, P, G = 2, 8, 12, 4


class StandIns(MetaPathFinder, Loader):
    """A finder of mocks for whatever of an engine is not to be real."""

    def __init__(self, engine, folder):
        self.engine, self.folder = engine, Path(folder)

    def find_spec(self, name, path, target=None):
        mine = name.split(".")[0] == self.engine
        if any(name == one or name.startswith(f"{one}.") for one in REAL[self.engine]):
            return None
        if not mine and name not in OTHERS:
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = StandIn(spec.name)
        module.__path__ = [str(self.folder.joinpath(*spec.name.split(".")))]
        return module

    def exec_module(self, module):
        pass


class StandIn(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (), {}) if name == "FusedMoERouter" else MagicMock(name=name)
        setattr(self, name, value)
        return value


def vllm():
    sys.modules["vllm.config.parallel"] = types.ModuleType("vllm.config.parallel")
    from typing import Literal

    sys.modules["vllm.config.parallel"].EPLBPolicyOption = Literal["default"]
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    import torch

    eplb_state = import_module("vllm.distributed.eplb.eplb_state")
    EPLB_POLICIES = import_module("vllm.distributed.eplb.policy").EPLB_POLICIES
    base_router = import_module("vllm.model_executor.layers.fused_moe.router.base_router")

    weight = torch.arange(1.0, L * E + 1).reshape(L, E)
    phy2log = EPLB_POLICIES["default"].rebalance_experts(weight, P, 1, 1, G)
    answer = {"policy": EPLB_POLICIES["default"].__name__, "shape": list(phy2log.shape)}
    eplb_state.PIN_MEMORY = False
    eplb_state.get_ep_group().device_group.size.return_value = G
    state = eplb_state.EplbState(Parallel(), torch.device("cpu"))
    state.add_model(Model(eplb_state.EplbLayerState), MagicMock())
    (model,) = state.model_states.values()
    pointers = [model.logical_to_physical_map.data_ptr()]
    ids = torch.arange(E).repeat(64)[:, None]

    def loads(layer):
        one = model.model.moe_layers[layer].eplb_state
        one.num_unpadded_tokens_tensors[0].fill_(len(ids) - 32)
        one.expert_load_view.zero_()
        slots = base_router.eplb_map_to_physical_and_record(
            topk_ids=ids, logical_to_physical_map=one.logical_to_physical_map,
            logical_replica_count=one.logical_replica_count, expert_load_view=one.expert_load_view,
            record_enabled=one.should_record_tensor,
            num_unpadded_tokens=one.num_unpadded_tokens_tensors[0],
        )  # fmt: skip
        assert (model.physical_to_logical_map[layer][slots] == ids).all()
        return one.expert_load_view.tolist(), slots

    if answer["policy"] == "WeightedPolicy":
        answer["recorded"] = sum(loads(0)[0])
        answer["before"] = [loads(layer)[0] for layer in range(L)]
        model.last_expert_load = weight.long() ** 2
        eplb_state._commit_eplb_maps(model, phy2log)
        peaks = torch.stack(
            [torch.bincount(loads(layer)[1].reshape(-1) // 3, minlength=G) for layer in range(L)]
        )
        answer["imbalance"] = (peaks.max(1).values / peaks.double().mean(1)).tolist()
        other = EPLB_POLICIES["default"].rebalance_experts(weight.flip(1), P, 1, 1, G)
        eplb_state._commit_eplb_maps_for_layer(model, other[1], 1)
        loads(1)
        answer["in place"] = [model.logical_to_physical_map.data_ptr()] == pointers
    return answer


@dataclass
class Parallel:
    enable_elastic_ep: bool = False
    num_ubatches: int = 0
    data_parallel_size: int = 1

    @property
    def eplb_config(self):
        return types.SimpleNamespace(
            use_async=False, window_size=4, step_interval=8, policy="default", communicator="torch_gloo"
        )


class Model:
    """What vLLM's ``MixtureOfExperts`` has, of two layers."""

    num_moe_layers, num_expert_groups, num_shared_experts = L, 1, 0
    num_logical_experts = num_routed_experts = E
    num_physical_experts, num_redundant_experts, num_local_physical_experts = P, P - E, P // G

    def __init__(self, layer_state):
        import torch

        self.moe_layers = [types.SimpleNamespace(eplb_state=layer_state()) for _ in range(L)]
        self.expert_weights = [[torch.zeros(P // G, 1)] for _ in range(L)]

    def set_eplb_state(self, *tensors):
        for i, layer in enumerate(self.moe_layers):
            layer.eplb_state.set_layer_state(i, *tensors)


def sglang():
    from sglang.srt.plugins import load_plugins

    load_plugins()
    import torch
    from sglang.srt.eplb import eplb_algorithms, expert_location, expert_location_dispatch

    answer = {"ours": hasattr(eplb_algorithms.rebalance_experts, "__wrapped__")}
    weight = torch.arange(1.0, L * E + 1).reshape(1, L, E) ** 2
    algorithm = eplb_algorithms.EplbAlgorithm.deepseek
    maps = eplb_algorithms.rebalance_experts(weight, P, P // G, None, 1, algorithm)
    answer["shape"] = list(maps[0].shape)
    execution = expert_location.get_exec()
    execution.moe.ep_dispatch_algorithm, execution.moe.moe_a2a_backend = "dynamic", "none"
    expert_location_dispatch.get_exec = lambda: execution

    def metadata(maps):
        return expert_location.ExpertLocationMetadata._init_raw(G, maps[0], maps[1], 0)

    trivial = (torch.arange(P) % E).repeat(L, 1)
    first = torch.tensor([[e, e + E] if e + E < P else [e, -1] for e in range(E)]).expand(L, -1, -1).clone()
    location = metadata((trivial, first))
    get = lambda: location  # noqa: E731
    expert_location.get_global_expert_location_metadata = get
    expert_location_dispatch.get_global_expert_location_metadata = get
    describe = expert_location_dispatch.ExpertLocationDispatchInfo.init_new
    ids = torch.arange(E).repeat(64).reshape(-1, 2)

    def slots(layer):
        found = expert_location_dispatch.topk_ids_logical_to_physical(ids, describe(layer))
        assert (location.physical_to_logical_map[layer][found] == ids).all()
        return found

    if answer["ours"]:  # as its manager asks, with the map in use: none has paid yet, so none moves
        from evenload.moe.adapters.sglang import by_one_or_all

        def ask(manager, loads, *, broadcast_over_world):
            return eplb_algorithms.rebalance_experts(loads, P, P // G, None, 1, algorithm)[0]

        answer["stays"] = bool(
            (by_one_or_all(ask, None, weight, broadcast_over_world=False) == trivial).all()
        )
    answer["weighted"] = hasattr(describe(0), "evenload")
    slots(0)
    location.update(metadata(maps), update_layer_ids=[1])
    slots(0)
    if answer["weighted"]:
        ids = torch.arange(E).repeat_interleave(weight[0, 1].long())[:, None]
        found = torch.bincount(slots(1).reshape(-1) // 3, minlength=G)
        answer["imbalance"] = float(found.max() / found.double().mean())
        call = torch.compile(
            lambda one: expert_location_dispatch.topk_ids_logical_to_physical(one, info),
            backend="eager", fullgraph=True, dynamic=True,
        )  # fmt: skip
        info = describe(1)
        answer["compiled"] = bool((call(ids) == slots(1)).all())
    return answer


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    engine, folder = sys.argv[1:3]
    sys.path.insert(0, folder)
    sys.meta_path.insert(0, StandIns(engine, folder))
    answer = {"vllm": vllm, "sglang": sglang}[engine]()
    sys.stdout.write(json.dumps(answer))
