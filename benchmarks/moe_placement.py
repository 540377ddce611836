"""Expert placement: EPLB's policy compiled, the search beyond it, node limits, fewest fetches.

    python benchmarks/moe_placement.py [policy] [search] [nodes] [moves]

CPU seconds of one thread, of one call for what takes long. Peers run if ``EVENLOAD_PEERS`` names a folder
with the unpacked wheels of vllm 0.33.0 and sglang 0.5.23 (``pip download --no-deps``). The reference's own
code is not here; ``slow twin`` is its definition written down in Python (tests/reference/eplb_twin.py), with
the reference's ids on its README example.
"""

import argparse
import importlib.util
import os
import sys
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from moe_workloads import traces, windows_of
from numpy.typing import NDArray
from record import record

from evenload.cli.bench.measure.timing import least_time, median_cpu_s
from evenload.moe import Fleet, place, rebalance_experts, schedule_transfers
from evenload.moe.generators import Popularity, generate
from evenload.moe.placement.bound import equal_split_imbalance, placement_bound
from evenload.moe.replay.replayer import imbalances
from evenload.moe.topology import lay_out, ring, torus

PEERS = Path(os.environ.get("EVENLOAD_PEERS", "/nowhere"))
Planner = Callable[[NDArray, int, int, int, int], Any]


def cpu_ms(work: Callable[[], Any]) -> tuple[float, Any]:
    """CPU milliseconds of one call, and its answer."""
    found = least_time(work, 1, warms_up=False)
    return 1e3 * found.cpu_s, found.result


def compile_kernels() -> None:
    """Plan two layers in every way, so that what is measured later compiles nothing."""
    history = np.random.default_rng(0).integers(1, 100, (2, 2, 64))
    fleet, nodes = Fleet.even(8, 72), Fleet.even(8, 72, n_nodes=2)
    old = eplb(history, fleet, 2, 2)
    lay_out(ring(8), history.sum(axis=0), 72)
    for effort in ("online", "offline"):
        search(history, fleet, effort=effort)
    for limit in ("all", "base"):
        search(history, nodes, node_limit=limit, n_groups=2)
    for objective in ("routed", "equal"):
        search(history, fleet, objective=objective)
        moved = search(history, fleet, objective=objective, old=old, target=1.01)
        schedule_transfers(old, moved, fleet)
        judged(moved, history, fleet, objective == "routed")


def module_at(path: Path, name: str, package: Path | None = None) -> Any:
    """Run one file of a peer by itself; ``package`` lets it import its neighbours."""
    if package is not None:
        parent = types.ModuleType(name.rpartition(".")[0])
        parent.__path__ = [str(package)]
        sys.modules[parent.__name__] = parent
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def planners() -> dict[str, tuple[Planner, int]]:
    """name -> (plan, repetitions)."""
    twin = module_at(Path(__file__).parents[1] / "tests" / "reference" / "eplb_twin.py", "eplb_twin")
    found: dict[str, tuple[Planner, int]] = {
        "evenload": (lambda w, *sizes: rebalance_experts(w, *sizes).phy2log, 20),
        "slow twin": (lambda w, *sizes: [twin.rebalance_layer(row, *sizes)[0] for row in w], 1),
    }
    vllm = PEERS / "vllm" / "distributed" / "eplb" / "policy"
    sglang = PEERS / "sglang" / "srt" / "eplb" / "eplb_algorithms" / "deepseek.py"
    if not (vllm.is_dir() and sglang.is_file()):
        print("no peers: EVENLOAD_PEERS names no folder with vllm and sglang", file=sys.stderr)
        return found
    import torch

    torch.set_num_threads(1)
    module_at(vllm / "abstract.py", "vllm_policy.abstract", vllm)
    policy = module_at(vllm / "default.py", "vllm_policy.default").DefaultEplbPolicy
    deepseek = module_at(sglang, "sglang_deepseek")

    def by_vllm(w: NDArray, *sizes: int) -> NDArray:
        return policy.rebalance_experts(torch.from_numpy(w), *sizes).numpy()

    def by_sglang(w: NDArray, n_slots: int, n_groups: int, n_nodes: int, n_gpus: int) -> NDArray:
        is_grouped = n_groups % n_nodes == 0
        return deepseek.rebalance_experts(
            torch.from_numpy(w), n_slots, n_groups, n_nodes, n_gpus, is_grouped
        )[0].numpy()

    return found | {"vLLM 0.33": (by_vllm, 3), "SGLang 0.5": (by_sglang, 3)}


def twins(phy2log: NDArray, n_gpus: int) -> int:
    rows = phy2log.reshape(len(phy2log), n_gpus, -1)
    return sum(len(gpu) - len(set(gpu)) for row in rows.tolist() for gpu in row)


def policy_table() -> None:
    """58 layers of 256 experts, log-normal loads (0.7); imbalance under an equal split."""
    loads = np.random.default_rng(0).lognormal(8, 0.7, (58, 256)).astype(np.float32)
    rows = []
    for sizes in ((288, 8, 4, 32), (320, 8, 8, 64), (288, 1, 1, 32), (288, 1, 1, 144)):
        n_slots, _, n_nodes, n_gpus = sizes
        for name, (plan, repeat) in planners().items():
            seconds, answer = median_cpu_s(partial(plan, loads, *sizes), repeat)
            phy2log = np.asarray(answer)
            even = equal_split_imbalance(phy2log, loads, n_gpus)
            rows.append(
                {
                    "slots": n_slots,
                    "GPUs": n_gpus,
                    "nodes": n_nodes,
                    "planner": name,
                    "CPU ms": round(1e3 * seconds, 3),
                    "imbalance": round(float(even.mean()), 4),
                    "worst layer": round(float(even.max()), 4),
                    "twins": twins(phy2log, n_gpus),
                    "bound": round(float(placement_bound(loads, n_slots, n_gpus).mean()), 4),
                }
            )
    record("moe_placement_policy", rows, unit="CPU ms for 58 layers of 256 experts, one thread")


def judged(phy2log: NDArray, batches: NDArray, fleet: Fleet, routed: bool = True) -> dict[str, float]:
    even = imbalances(phy2log, batches, fleet, routed=routed)
    return {
        "mean": round(float(even.mean()), 4),
        "p99": round(float(np.percentile(even, 99)), 4),
        "worst": round(float(even.max()), 4),
    }


def eplb(history: NDArray, fleet: Fleet, n_groups: int = 1, n_nodes: int = 1) -> NDArray:
    return rebalance_experts(
        history.sum(axis=0), fleet.n_living_slots, n_groups, n_nodes, fleet.n_gpus
    ).phy2log


def search(history: NDArray, fleet: Fleet, **options: Any) -> NDArray:
    return place(history, fleet, **options).phy2log


def search_table() -> None:
    """Real traces: planned on the first half, judged on the second half's 512-token batches; 26 layers."""
    rows = []
    for trace, ids in traces().items():
        half = ids.shape[1] // 2
        fine, coarse = (windows_of(ids[:, :half], 64, n) for n in (128, 512))
        batches = windows_of(ids[:, half:], 64, 512)
        for n_gpus, n_slots, peer in ((16, 80, ring(16)), (16, 96, torus(4, 4)), (8, 72, ring(8))):
            fleet = Fleet.even(n_gpus, n_slots)
            plans: dict[str, Callable[[], NDArray]] = {
                "EPLB, split equally": partial(eplb, coarse, fleet),
                "EPLB, routed": partial(eplb, coarse, fleet),
                f"{'ring' if peer.shape[1] == 1 else 'torus'}, routed": partial(
                    lay_out, peer, coarse.sum(axis=0), n_slots
                ),
                "search on windows of 512, routed": partial(search, coarse, fleet),
                "search on windows of 128, routed": partial(search, fine, fleet),
                "search offline, routed": partial(search, fine, fleet, effort="offline"),
            }
            for name, plan in plans.items():
                ms, phy2log = cpu_ms(plan)
                even = judged(phy2log, batches, fleet, routed=not name.endswith("equally"))
                facts = {"trace": trace, "GPUs": n_gpus, "slots": n_slots, "placement": name}
                rows.append(facts | even | {"CPU ms a layer": round(ms / len(ids), 2)})
    record("moe_placement_search", rows, batches="held out, 512 tokens, 26 layers", bound=1.0)


def nodes_table() -> None:
    """64 GPUs on 8 nodes, 8 groups of 32 experts, 320 slots: what limits cost, on 8 later batches."""
    popularity = Popularity(drift=0.1)
    trace = generate(popularity, n_windows=16, n_layers=8, n_experts=256, n_ids=64 * 1024, seed=1)
    history, batches = np.split(trace.windows(1), 2)
    fleet = Fleet.even(64, 320, n_nodes=8)
    plans: dict[str, Callable[[], NDArray]] = {
        "EPLB by groups": partial(eplb, history, fleet, 8, 8),
        "EPLB, no groups": partial(eplb, history, fleet),
        "search, all copies on their node": partial(search, history, fleet, node_limit="all", n_groups=8),
        "search, one copy on its node": partial(search, history, fleet, node_limit="base", n_groups=8),
        "search, no limit": partial(search, history, fleet),
    }
    rows = []
    for name, plan in plans.items():
        ms, phy2log = cpu_ms(plan)
        split = judged(phy2log, batches, fleet, routed=False)["mean"]
        routed = judged(phy2log, batches, fleet)["mean"]
        rows.append(
            {"placement": name, "split equally": split, "routed": routed, "CPU ms a layer": round(ms / 8, 1)}
        )
    record("moe_placement_nodes", rows)


def moves_table() -> None:
    """From a placement in use to the next: experts fetched, and imbalance of the batches after that."""
    popularity = Popularity(drift=0.1)
    trace = generate(popularity, n_windows=24, n_layers=16, n_experts=256, n_ids=32 * 1024, seed=1)
    big, small = Fleet.even(32, 288), Fleet.even(16, 80)
    real = {name: windows_of(ids, 64, 512) for name, ids in traces().items()}
    first, second = list(real)[:2]
    cases = {"log-normal, drift 0.1": (*np.split(trace.windows(1), 3), big)}
    cases |= {f"{name}, later": (*np.split(windows, [5, 10]), small) for name, windows in real.items()}
    cases[f"{first} to {second}"] = (real[first][:5], real[second][5:10], real[second][10:], small)
    rows = []
    for case, (before, recent, later, fleet) in cases.items():
        rows += _moves(case, search(before, fleet), recent, later, fleet, routed=True)
    # As before, but loads are split equally, and judged where they were planned.
    one = trace.windows(8)
    old = eplb(one[:1], big)
    rows += _moves("log-normal, split equally", old, one[1:2], one[1:2], big, routed=False)
    record("moe_placement_moves", rows)


def _moves(
    case: str, old: NDArray, recent: NDArray, later: NDArray, fleet: Fleet, routed: bool
) -> list[dict[str, Any]]:
    objective = "routed" if routed else "equal"
    plans: dict[str, Callable[[], NDArray]] = {
        "stay": lambda: old,
        "EPLB anew": partial(eplb, recent, fleet),
        "search anew": partial(search, recent, fleet, objective=objective),
    }
    for target in (1.03, 1.02, 1.01):
        options = {"objective": objective, "old": old, "target": target}
        plans[f"few fetches, target {target}"] = partial(search, recent, fleet, **options)
    rows = []
    for name, plan in plans.items():
        ms, phy2log = cpu_ms(plan)
        schedule = schedule_transfers(old, phy2log, fleet)
        rows.append(
            {
                "case": case,
                "plan": name,
                "slots refilled %": round(100 * schedule.moved_share, 2),
                "batches": len(schedule.batches),
                "at least": schedule.fewest_batches,
                "recent": judged(phy2log, recent, fleet, routed)["mean"],
                "later": judged(phy2log, later, fleet, routed)["mean"],
                "CPU ms a layer": round(ms / len(old), 1),
            }
        )
    return rows


TABLES = {"policy": policy_table, "search": search_table, "nodes": nodes_table, "moves": moves_table}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("tables", nargs="*", default="all", choices=["all", *TABLES])
    tables = parser.parse_args().tables
    compile_kernels()
    for name in TABLES if "all" in tables else tables:
        print(f"\n{TABLES[name].__doc__}")
        TABLES[name]()
