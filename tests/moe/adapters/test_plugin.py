"""The entry points reach every process of an engine, and do nothing unless they are asked to."""

import json
import os
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest
import torch

from evenload.moe.adapters import sglang, vllm
from evenload.moe.adapters.after_import import after_import
from evenload.moe.adapters.plugin import TESTED

ROOT = Path(__file__).resolve().parents[3]
LOADER = """
def load():
    from importlib.metadata import entry_points
    for one in entry_points(group="{group}"):
        one.load()()
"""
VLLM_POLICY = "class AbstractEplbPolicy: pass\nEPLB_POLICIES = {'default': object}\n"
SGLANG_HOOKS = """
import enum, importlib
class HookType(enum.Enum):
    REPLACE = "replace"
    AROUND = "around"
class HookRegistry:
    hooks = []
    @classmethod
    def register(cls, target, hook, kind):
        cls.hooks.append((target, kind.value))
"""
CHILD = """
import multiprocessing, sys
def main(pipe):
    import engine_loader
    engine_loader.load()
    heavy = [one for one in ("torch", "numba") if one in sys.modules]
    if "{engine}" == "vllm":
        from vllm.distributed.eplb.policy import EPLB_POLICIES
        found = EPLB_POLICIES["default"].__name__
    else:
        from sglang.srt.plugins.hook_registry import HookRegistry
        found = sorted(target.rsplit(".", 1)[1] for target, _ in HookRegistry.hooks)
    pipe.send((heavy, found))
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=main, args=(theirs,))
    process.start()
    theirs.close()
    try:
        print(ours.recv())
    except EOFError:
        print("none")
    process.join()
"""


@pytest.fixture
def installed(tmp_path):
    """A folder with the metadata of evenload, as pip would install it from pyproject.toml."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    folder = tmp_path / "site"
    write_metadata(folder, "evenload", "9")
    text = "".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in one.items())
        for group, one in points.items()
    )
    (folder / "evenload-9.dist-info" / "entry_points.txt").write_text(text)
    return folder


def write_metadata(folder, name, version):
    where = folder / f"{name}-{version}.dist-info"
    where.mkdir(parents=True)
    (where / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def run(arguments, mode, *paths, cwd):
    paths = [*map(str, paths), *os.environ.get("PYTHONPATH", "").split(os.pathsep), str(ROOT / "src")]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "EVENLOAD_MOE": mode}
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=environ,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=550,
    )


def unpacked(name, version):
    """The folder of an engine's wheel, if ``EVENLOAD_PEERS`` names one that has it."""
    peers = Path(os.environ.get("EVENLOAD_PEERS", "/nowhere"))
    folders = sorted(peers.glob(f"{name}-{version}*"))
    if not folders:
        pytest.skip(f"no folder {name}-{version}* in EVENLOAD_PEERS")
    return folders[0]


@pytest.fixture
def engine(installed, tmp_path):
    """Run a program that spawns a process, which calls the loader of a stand-in of an engine."""

    def spawn(name, version, mode):
        write_metadata(installed, name, version)
        inner = {"vllm": "distributed/eplb/policy", "sglang": "srt/plugins"}[name]
        (installed / name / inner).mkdir(parents=True)
        if name == "vllm":
            (installed / name / inner / "__init__.py").write_text(VLLM_POLICY)
        else:
            (installed / name / inner / "hook_registry.py").write_text(SGLANG_HOOKS)
        group = {"vllm": "vllm.general_plugins", "sglang": "sglang.srt.plugins"}[name]
        (installed / "engine_loader.py").write_text(LOADER.format(group=group))
        program = tmp_path / "program.py"
        program.write_text(CHILD.format(engine=name))
        return run([program], mode, installed, cwd=tmp_path)

    return spawn


@pytest.mark.parametrize(
    ("name", "mode", "found"),
    [
        ("vllm", "off", "([], 'object')"),
        ("vllm", "search", "([], 'SearchPolicy')"),
        ("vllm", "weighted", "WeightedPolicy"),
        ("sglang", "off", "([], [])"),
        (
            "sglang",
            "weighted",
            "['_compute_expert_location_metadata', 'init_new', 'rebalance_experts', "
            "'topk_ids_logical_to_physical', 'update']",
        ),
    ],
)
def test_a_spawned_process_of_the_engine_uses_what_is_set(engine, name, mode, found):
    done = engine(name, f"{TESTED[name][-1]}.0" if name == "vllm" else TESTED[name][-1], mode)
    assert found in done.stdout, done.stderr


@pytest.mark.parametrize(("name", "version"), [("vllm", "0.99.0"), ("sglang", "0.5.230")])
def test_a_version_that_was_not_tested_is_left_alone_and_named(engine, name, version):
    done = engine(name, version, "weighted")
    assert done.stdout.strip() in ("([], 'object')", "([], [])"), done.stderr
    assert f"{name} {version} is no version" in done.stderr


def test_a_misspelt_setting_is_an_error_that_lists_the_right_ones(engine):
    done = engine("vllm", "0.33.0", "serach")
    assert done.stdout.strip() == "none"
    assert "search" in done.stderr
    assert "UnknownName" in done.stderr


def test_a_broken_file_of_settings_does_not_stop_the_engine(engine, tmp_path):
    (tmp_path / "evenload.toml").write_text("nonsense = = 1")
    done = engine("vllm", "0.33.0", "")
    assert done.stdout.strip() == "([], 'object')"
    assert "leaves vllm alone" in done.stderr


def test_entry_points_and_adapters_import_nothing_heavy(tmp_path):
    code = (
        "import sys, evenload.moe.adapters.plugin as p; p.load_into_vllm(); p.load_into_sglang();"
        "heavy = {'torch', 'numba', 'llvmlite', 'scipy', 'triton', 'vllm', 'sglang'};"
        "print(sorted((heavy | {'numpy'}) & {*sys.modules}));"
        "import evenload.moe.adapters.vllm, evenload.moe.adapters.sglang, evenload.moe.routing.planner;"
        "import evenload.moe.routing.device; print(sorted(heavy & {*sys.modules}))"
    )
    assert run(["-c", code], "off", cwd=tmp_path).stdout == "[]\n[]\n"


def test_a_change_is_made_when_the_module_is_imported_and_only_once(tmp_path, monkeypatch):
    (tmp_path / "some_engine_module.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    seen = []
    after_import("some_engine_module", lambda module: seen.append(module.value))
    after_import("some_engine_module", lambda module: setattr(module, "value", 2))
    after_import("a_module_that_is_nowhere", seen.append)
    assert seen == []
    import some_engine_module

    assert (seen, some_engine_module.value) == ([1], 2)
    after_import("some_engine_module", lambda module: seen.append(module.value))
    assert seen == [1, 2]
    with pytest.raises(ModuleNotFoundError):
        import a_module_that_is_nowhere  # noqa: F401
    monkeypatch.delitem(sys.modules, "some_engine_module")


# The hooks, on what the engines' modules promise


class Maps(types.SimpleNamespace):
    """vLLM's ``EplbModelState``: maps on the device, changed in place."""

    def __init__(self):
        placed = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3], [0, 1, 2, 3, 0, 0, 0, 1]])
        super().__init__(
            physical_to_logical_map=placed,
            logical_to_physical_map=torch.full((2, 4, 6), -1),
            last_expert_load=torch.tensor([[4, 3, 2, 1], [9, 1, 1, 1]]),
        )


@pytest.fixture
def eplb(monkeypatch):
    """vLLM's two modules, as far as they are changed; and a state with one model."""
    monkeypatch.setattr(vllm, "WEIGHTS", vllm._Weights())

    class EplbState:
        def __init__(self, n_replicas):
            self.parallel_config = types.SimpleNamespace(data_parallel_size=n_replicas)
            self.model_states = {}

        def add_model(self, model, config):
            self.model_states["one"] = model

        def update_mapping(self, config, phy2log):
            self.model_states["one"].physical_to_logical_map.copy_(phy2log)

    def commit(model_state, new_physical_to_logical_map):
        model_state.physical_to_logical_map.copy_(new_physical_to_logical_map)

    def commit_layer(model_state, new_physical_to_logical_map, layer):
        model_state.physical_to_logical_map[layer].copy_(new_physical_to_logical_map)

    group = types.SimpleNamespace(device_group=types.SimpleNamespace(size=lambda: 4))
    module = types.SimpleNamespace(
        EplbState=EplbState, get_ep_group=lambda: group, _commit_eplb_maps=commit,
        _commit_eplb_maps_for_layer=commit_layer,
    )  # fmt: skip
    router = types.SimpleNamespace(eplb_map_to_physical_and_record=lambda **_: "vLLM's own")
    vllm.hook_state(module)
    vllm.hook_router(router)
    return module, router


def call(router, model, layer, ids, n_tokens=None, is_recording=True):
    load = torch.zeros(12, dtype=torch.int32)
    slots = router.eplb_map_to_physical_and_record(
        topk_ids=ids, expert_load_view=load, logical_to_physical_map=model.logical_to_physical_map[layer],
        logical_replica_count=None, record_enabled=torch.tensor(is_recording),
        num_unpadded_tokens=None if n_tokens is None else torch.tensor(n_tokens),
    )  # fmt: skip
    return slots, load


@pytest.mark.parametrize("n_replicas", [1, 2])
def test_vllms_choice_follows_the_maps_that_it_commits(eplb, n_replicas):
    module, router = eplb
    model, state = Maps(), module.EplbState(n_replicas)
    ids = torch.arange(4, dtype=torch.int32).repeat(30)[:, None]
    assert call(router, model, 0, ids)[0] == "vLLM's own"
    state.add_model(model, None)
    for new in (model.physical_to_logical_map.flip(1), model.physical_to_logical_map.roll(3, 1)):
        module._commit_eplb_maps(model, new_physical_to_logical_map=new.clone())
        for layer in range(2):
            slots, load = call(router, model, layer, ids, n_tokens=100)
            assert (model.physical_to_logical_map[layer][slots.long()] == ids).all()
            assert (slots.dtype, int(load.sum())) == (torch.int32, 100)
    module._commit_eplb_maps_for_layer(model, model.physical_to_logical_map[1].roll(1), 1)
    for layer in range(2):
        slots, load = call(router, model, layer, ids, is_recording=False)
        assert (model.physical_to_logical_map[layer][slots.long()] == ids).all()
        assert int(load.sum()) == 0
    config = types.SimpleNamespace(compute_hash=lambda: "one")
    state.update_mapping(config, model.physical_to_logical_map.flip(0))
    slots, _ = call(router, model, 0, ids)
    assert (model.physical_to_logical_map[0][slots.long()] == ids).all()


def test_vllms_fleet_may_change_its_size(eplb):
    module, router = eplb
    model = Maps()
    module.EplbState(1).add_model(model, None)
    state = module.EplbState(1)
    state.add_model(model, None)
    model.physical_to_logical_map = torch.arange(12).repeat(2, 1) % 4
    module._commit_eplb_maps(model, new_physical_to_logical_map=model.physical_to_logical_map.clone())
    ids = torch.arange(4).repeat(30)[:, None]
    slots, _ = call(router, model, 0, ids)
    assert (slots % 4 == ids).all()
    assert int(slots.max()) == 11


class Location:
    """SGLang's ``ExpertLocationMetadata``, of two layers."""

    ep_size, num_logical_experts = 4, 4

    def __init__(self, placed):
        self.physical_to_logical_map = torch.tensor(placed)
        self.physical_to_logical_map_cpu = self.physical_to_logical_map.clone()

    def change(self, other, layers):
        for one in ("physical_to_logical_map", "physical_to_logical_map_cpu"):
            getattr(self, one)[layers] = getattr(other, one)[layers]


@pytest.mark.parametrize("is_invariant", [True, False])
def test_sglangs_choice_follows_the_layers_that_it_updates(monkeypatch, is_invariant):
    location = Location([[0, 1, 2, 3, 0, 1, 2, 3]] * 2)
    module = types.SimpleNamespace(get_global_expert_location_metadata=lambda: location)
    real = sglang.require
    monkeypatch.setattr(
        sglang, "require", lambda name, **more: module if "location" in name else real(name, **more)
    )

    def describe(layer, algorithm="dynamic"):
        found = types.SimpleNamespace(ep_dispatch_algorithm=algorithm, rank_invariant=is_invariant)
        return sglang.describe_weighted(lambda cls, layer_id: found, None, layer)

    ids = torch.arange(4).repeat(40).reshape(-1, 2)
    assert sglang.choose_by_weights(lambda *_: "its own", ids, describe(0, "lp")) == "its own"
    assert sglang.choose_by_weights(lambda *_: "its own", ids, None) == "its own"
    held = describe(1).evenload
    loads = torch.tensor([[[9.0, 3, 2, 1], [1, 2, 3, 9]]])
    maps = sglang.plan_by_weights(loads, 8, 2, None, 1, "deepseek")
    sglang.update_weights(Location.change, location, Location(maps[0].tolist()), [1])
    for layer in range(2):
        slots = sglang.choose_by_weights(lambda *_: None, ids, describe(layer))
        assert (location.physical_to_logical_map[layer][slots] == ids).all()
    assert held.share.data_ptr() == describe(1).evenload.share.data_ptr()
    weights = describe(1).evenload
    load = torch.zeros(5).scatter_add_(0, weights.expert, weights.share / 65536)
    assert load[:4].tolist() == [1.0] * 4


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint32])  # those of vLLM's kernels
def test_padding_in_ids_of_any_dtype_is_neither_mapped_nor_recorded(dtype):
    module = types.ModuleType("base_router")
    module.eplb_map_to_physical_and_record = lambda **_: None
    vllm.hook_router(module)
    phy2log, log2phy = torch.tensor([[0, 1, 2, 0, 1, 3]]), torch.zeros(1, 4, 2, dtype=torch.int64)
    model = types.SimpleNamespace(physical_to_logical_map=phy2log, logical_to_physical_map=log2phy)
    vllm.WEIGHTS.add(model, 2, True)
    ids = torch.tensor([[0, 1], [2, -1], [0, 3], [-1, -1]])
    load = torch.zeros(6, dtype=torch.int32)
    slots = module.eplb_map_to_physical_and_record(
        ids.to(dtype), load, log2phy[0], torch.ones(4), torch.ones(()), torch.tensor(2)
    )
    assert slots.dtype == dtype
    kept = slots.to(torch.int64)[ids >= 0]
    assert (phy2log[0][kept] == ids[ids >= 0]).all()
    assert (slots[ids < 0] == torch.tensor(-1).to(dtype)).all()
    assert int(load.sum()) == 3


# The engines themselves


@pytest.mark.slow
@pytest.mark.parametrize(("name", "version"), [(name, one) for name, some in TESTED.items() for one in some])
def test_the_benchmarks_formula_is_the_engines_own_choice(tmp_path, monkeypatch, name, version):
    pytest.importorskip("triton", reason="Triton is not installed")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    program = Path(__file__).with_name("engine_choices.py")
    done = run([program, name, unpacked(name, version), tmp_path], "off", cwd=tmp_path)
    assert done.stdout == "all equal", done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["off", "eplb", "search", "weighted"])
@pytest.mark.parametrize(("name", "version"), [(name, one) for name, some in TESTED.items() for one in some])
def test_the_engines_own_loader_and_modules(installed, tmp_path, name, version, mode):
    """``EVENLOAD_PEERS`` names a folder with the unpacked wheels as vllm-0.33.0, sglang-0.5.23, ..."""
    program = Path(__file__).with_name("engine_process.py")
    done = run([program, name, unpacked(name, version)], mode, installed, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["shape"] == [2, 12]
    names = {
        "off": "DefaultEplbPolicy",
        "eplb": "EplbPolicy",
        "search": "SearchPolicy",
        "weighted": "WeightedPolicy",
    }
    if name == "vllm":
        assert found["policy"] == names[mode]
    else:
        assert found["ours"] == (mode != "off")
        assert found.get("stays", False) == (mode in ("search", "weighted"))
        assert found["weighted"] == (mode == "weighted")
    if mode == "weighted":
        assert max([found["imbalance"]] if name == "sglang" else found["imbalance"]) < 1.1
        assert found.get("recorded", 480) == 480
        assert found.get("in place", True)
        assert found.get("compiled", True)
