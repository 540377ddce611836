"""Who came late to collectives, and what that cost: against worlds whose delays are known beforehand.

A world is made here, step by step: what each rank does before each collective, that a collective ends on all
ranks when the last has come and the data are there, and what each rank's clock is. Nothing of it is shared
with what reads the traces.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from examples_count import examples
from hypothesis import given, settings

from evenload.audit.audit import Audit
from evenload.audit.collective_names import operation_of
from evenload.audit.traces import AuditOptions, audit_traces

US = 1000  # nanoseconds
OF_PROGRAM = {
    "input": ("user_annotation", "enumerate(DataLoader)#_Iter.__next__"),
    "synchronisation": ("cuda_runtime", "cudaStreamSynchronize"),
    "launching": ("cpu_op", "aten::slow_op"),
}
KERNELS = ("gemm", "attention", "layer_norm")


@dataclass
class Rank:
    """One rank of a world: its events, the time on its own stream, and its clock's offset."""

    number: int
    offset_us: float
    now_us: float = 0.0
    events: list[dict[str, Any]] = field(default_factory=list)

    def span(self, category: str, name: str, took_us: float, pid: Any, **arguments: Any) -> None:
        start = self.now_us + self.offset_us
        row = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": 7, "ts": start, "dur": took_us}
        self.events.append({**row, "args": arguments} if arguments else row)

    def act(self, reason: str, took_us: float) -> None:
        """Spend time on something that the trace shows as ``reason``."""
        if reason in ("kernels", "copies"):
            row = ("kernel", "slow_kernel") if reason == "kernels" else ("gpu_memcpy", "Memcpy HtoD")
            self.span(*row, took_us, self.number)
        elif reason in OF_PROGRAM:
            self.span(*OF_PROGRAM[reason], took_us, 900)
        self.now_us += took_us

    def work(self, took_us: float, name: str = "gemm") -> None:
        self.span("kernel", name, took_us, self.number)
        self.now_us += took_us


@dataclass
class World:
    """A run of some ranks, and what is true of it: (late rank, reason) -> nanoseconds that others waited."""

    ranks: list[Rank]
    cost_ns: Counter[tuple[int, str]] = field(default_factory=Counter)
    n_late: Counter[tuple[int, str]] = field(default_factory=Counter)

    def write(self, folder: Path, told: str) -> list[Path]:
        paths = [folder / f"trace-{rank.number}.json" for rank in self.ranks]
        for rank, path in zip(self.ranks, paths, strict=True):
            info = {"rank": rank.number, "world_size": len(self.ranks), "backend": "nccl"}
            head = {} if told == "nothing" else {"distributedInfo": info}
            path.write_text(json.dumps({**head, "traceEvents": rank.events}))
        return paths


REASONS = ("kernels", "copies", "input", "synchronisation", "launching", "other code")
delays = st.none() | st.tuples(st.integers(0, 4), st.sampled_from(REASONS), st.integers(50, 4000))


@st.composite
def worlds(draw: st.DrawFn, told: str) -> World:
    """Two to five ranks that do the same in every step, but for one that is delayed in some of them."""
    n_ranks = draw(st.integers(2, 5))
    offsets = draw(st.lists(st.integers(-2_000_000, 2_000_000), min_size=n_ranks, max_size=n_ranks))
    world = World([Rank(at, 5_000_000 + by) for at, by in enumerate(offsets)])
    for rank in world.ranks:
        rank.span("cpu_op", "aten::begin", 1, 900)
    for number, delay in enumerate(draw(st.lists(delays, min_size=3, max_size=12))):
        work_us, transfer_us = draw(st.integers(100, 3000)), draw(st.integers(20, 500))
        name = draw(
            st.sampled_from(["ncclDevKernel_AllReduce_Sum_f32", "vllm::cross_device_reduce_1stage<f>"])
        )
        for rank in world.ranks:
            rank.work(work_us, KERNELS[number % 3])
        late, reason, size_us = (delay[0] % n_ranks, *delay[1:]) if delay else (0, "", 0)
        if delay:
            world.ranks[late].act(reason, size_us)
            world.cost_ns[late, reason] += size_us * US * (n_ranks - 1)
            world.n_late[late, reason] += 1
        end_us = max(rank.now_us for rank in world.ranks) + transfer_us
        ranks = str(list(range(n_ranks)))
        for rank in world.ranks:
            more = {"Process Group Name": "3", "Process Group Ranks": ranks, "Collective name": "allreduce"}
            more |= {"Seq": number} if told == "numbers" else {}
            more = {} if told == "nothing" else more
            rank.span("kernel", name, end_us - rank.now_us, rank.number, **more)
            rank.now_us = end_us
    return world


def audited(ranks: list[Rank], folder: Path) -> Audit:
    return audit_traces(World(ranks).write(folder, "groups"))


def culprits(found: Audit) -> Counter[tuple[int, str]]:
    """Costs by (rank, reason), from the devices' names."""
    return Counter({(int(one.device[-1]), one.reason): one.cost_ns for one in found.culprits})


@pytest.mark.parametrize("told", ["groups", "numbers", "nothing"])
def test_each_wait_has_its_culprit(told, tmp_path_factory):
    """Exact to the nanosecond, whatever the clocks say, with and without what NCCL tells of a collective.

    The oracle is the world: who was delayed, by what, and how long the others stood in the collective.
    """
    folder = tmp_path_factory.mktemp(told)

    @settings(max_examples=examples(30), deadline=None)
    @given(worlds(told))
    def hold(world: World) -> None:
        found = audit_traces(world.write(folder, told))
        assert found.work_ns + sum(found.lost_ns.values()) == found.wall_ns * len(found.devices)
        assert found.lost_ns["late ranks"] == sum(world.cost_ns.values())
        assert culprits(found) == +world.cost_ns
        assert {(int(one.device[-1]), one.reason): one.n_late for one in found.culprits} == dict(world.n_late)
        for one in found.culprits:
            assert sum(one.victims.values()) == one.cost_ns
            assert one.device not in one.victims
            if one.reason in ("kernels", "launching"):
                assert "slow" in one.span

    hold()


@pytest.mark.parametrize("n_missing", [1, 3])
def test_traces_that_begin_at_another_collective(n_missing, tmp_path):
    """Rank 1's trace lacks its first collectives: the others are paired all the same."""
    ranks = [Rank(0, 0.0), Rank(1, 70_000.0)]
    for step in range(12):
        for rank in ranks:
            took = 1000 + 370 * (step * step % 7) + (5000 if rank.number == 1 and step == 9 else 0)
            rank.work(took)
        end = max(rank.now_us for rank in ranks) + 100
        for rank in ranks:
            rank.span("kernel", "ncclDevKernel_AllReduce", end - rank.now_us, rank.number)
            rank.now_us = end
    ranks[1].events = ranks[1].events[2 * n_missing :]
    found = audited(ranks, tmp_path)
    assert culprits(found) == {(1, "kernels"): 5_000_000}
    assert any("Clocks were aligned" in fault for fault in found.faults)


def test_collectives_of_other_ranks_are_not_paired(tmp_path):
    """Two ranks of different groups, whose collectives end when theirs do: nothing is said of lateness."""
    ranks = [Rank(0, 0.0), Rank(1, 0.0)]
    for step in range(20):
        for rank in ranks:
            took = 1000 + 977 * ((step * 7 + 3 * rank.number * step) % 11)
            rank.work(took)
            rank.span("kernel", "ncclDevKernel_AllReduce", 80, rank.number)
            rank.now_us += 80
    found = audited(ranks, tmp_path)
    assert found.lost_ns["late ranks"] == 0
    assert found.lost_ns["exchange"] == 2 * 20 * 80 * US
    assert any("no equal on other devices" in fault for fault in found.faults)


def collective(
    ranks: list[Rank], group: list[int], name: str = "AllReduce", leaves: int | None = None
) -> None:
    """All of ``group`` meet; ``leaves``: a rank that leaves at once, as the source of a broadcast may."""
    end = max(ranks[at].now_us for at in group) + 100
    for at in group:
        stop = ranks[at].now_us + 50 if at == leaves else end
        more = {"Process Group Name": f"g{group}", "Process Group Ranks": str(group), "Collective name": name}
        ranks[at].span("kernel", f"ncclDevKernel_{name}", stop - ranks[at].now_us, at, **more)
        ranks[at].now_us = stop


def work(ranks: list[Rank], took_us: float = 1000) -> None:
    for rank in ranks:
        rank.span("cpu_op", "aten::mm", 1, 900)
        rank.work(took_us)


def test_who_was_held_up_is_not_blamed(tmp_path):
    """Rank 0 waits for its data; rank 1 waits for rank 0 in one group, and so comes late to another."""
    ranks = [Rank(at, 0.0) for at in range(3)]
    for _ in range(6):
        work(ranks)
        ranks[0].act("input", 10_000)
        collective(ranks, [0, 1])
        collective(ranks, [1, 2])
        collective(ranks, [0, 1, 2])
    found = audited(ranks, tmp_path)
    late = culprits(found)
    assert late[0, "input"] == 6 * (10_000 + 10_100) * US
    assert sum(late.values()) - late[0, "input"] <= 6 * 200 * US  # rank 1 does one exchange more than rank 0
    assert "was for rank 0" in found.sentence


def test_a_rank_whose_trace_is_not_here(tmp_path):
    ranks = [Rank(at, 0.0) for at in range(4)]
    for _ in range(5):
        work(ranks)
        ranks[1].act("kernels", 10_000)
        collective(ranks, [0, 1, 2, 3])
    paths = World(ranks).write(tmp_path, "groups")
    found = audit_traces([paths[0], *paths[2:]])
    assert any("1 of the 4 ranks" in fault for fault in found.faults)
    assert "traces of all ranks" in found.sentence
    alone = audit_traces(paths[:1])
    assert any("no equal" in fault for fault in alone.faults)


def test_a_source_that_leaves_a_broadcast_early(tmp_path):
    """Its end is no common one: no clock is moved by it, and the late rank is named."""
    ranks = [Rank(at, 0.0) for at in range(4)]
    for _ in range(10):
        work(ranks)
        ranks[3].act("kernels", 2000)
        collective(ranks, [0, 1, 2, 3], "Broadcast", leaves=0)
        ranks[0].now_us = ranks[1].now_us
    found = audited(ranks, tmp_path)
    assert culprits(found) == {(3, "kernels"): 10 * 2 * 2000 * US}
    assert not any("Clocks" in fault for fault in found.faults)


def test_clocks_that_one_group_aligns_serve_another(tmp_path):
    """A group that meets once, beside one that meets six times."""
    ranks = [Rank(0, 0.0), Rank(1, 2000.0)]
    for step in range(6):
        work(ranks)
        collective(ranks, [0, 1])
        if step == 3:
            ranks[1].act("input", 3000)
            collective(ranks, [0, 1], "AllGather")
    found = audited(ranks, tmp_path)
    assert culprits(found) == {(1, "input"): 3000 * US}


@pytest.mark.parametrize("offset_us", [0, 1_000_000])
def test_clocks_that_drift(offset_us, tmp_path):
    """20 millionths apart, over a minute; one delay in ten is of rank 1."""
    ranks = [Rank(0, 0.0), Rank(1, 0.0)]
    for step in range(300):
        work(ranks, 200_000)
        if step % 10 == 3:
            ranks[1].act("kernels", 20_000)
        collective(ranks, [0, 1])
    for event in ranks[1].events:
        event["dur"] *= 1 + 20e-6
        event["ts"] = event["ts"] * (1 + 20e-6) + offset_us
    found = audited(ranks, tmp_path)
    assert culprits(found)[1, "kernels"] == pytest.approx(30 * 20_000 * US, rel=0.001)
    assert found.lost_ns["late ranks"] == pytest.approx(30 * 20_000 * US, rel=0.001)


def test_sends_and_receives_are_exchange(tmp_path):
    """Ranks that work in turns: each waits for the one before, and none is late."""
    ranks = [Rank(at, 0.0) for at in range(3)]
    for _ in range(4):
        for at in range(3):
            work(ranks[at : at + 1])
            if at < 2:
                collective(ranks, [at, at + 1], "SendRecv")
        for rank in ranks:
            rank.now_us = ranks[2].now_us
    found = audited(ranks, tmp_path)
    assert found.lost_ns["late ranks"] == 0
    assert not found.culprits


def test_a_wait_behind_work_costs_nothing(tmp_path):
    """While a rank computes beside a collective, it does not wait for the late one."""
    ranks = [Rank(0, 0.0), Rank(1, 0.0)]
    for rank, start in zip(ranks, (0, 400), strict=True):
        rank.now_us = start
        rank.span("kernel", "ncclDevKernel_AllGather", 1000 - start, rank.number)
        rank.now_us = 0
        rank.span("kernel", "gemm", 300 if rank.number == 0 else 400, rank.number)
    found = audited(ranks, tmp_path)
    assert found.lost_ns["late ranks"] == 100 * US
    assert culprits(found) == {(1, "kernels"): 100 * US}


def test_steps_by_rank(tmp_path):
    """Ten steps of 1 ms, of which rank 1's seventh loads for 3 ms more."""
    ranks = [Rank(0, 0.0), Rank(1, 0.0)]
    for step in range(10):
        for rank in ranks:
            more = 3000 if (step, rank.number) == (6, 1) else 0
            rank.span("user_annotation", f"ProfilerStep#{step}", 1000 + more, 900)
            if more:
                rank.act("input", more)
            rank.span("kernel", "gemm", 900, rank.number)
            rank.span("cpu_op", "aten::mm", 50, 900)
            rank.now_us += 1000
    found = audited(ranks, tmp_path)
    assert [(one.n_steps, one.median_s) for one in found.steps] == [(10, 0.001), (10, 0.001)]
    assert not found.steps[0].slow
    (slow,) = found.steps[1].slow
    assert (slow.number, slow.use) == (7, "input")
    assert slow.took_s == pytest.approx(0.004)
    assert slow.more_s == pytest.approx(0.003)


def test_what_the_program_did_in_gaps(tmp_path):
    """A GPU idles 1 ms for each cause in turn, and all of it is told."""
    rank = Rank(0, 0.0)
    for reason in REASONS[2:]:
        rank.work(500)
        rank.act(reason, 1000)
    rank.span("kernel", "gemm", 500, 0)
    found = audited([rank], tmp_path)
    assert found.gaps_ns == {**dict.fromkeys(REASONS[2:], 1_000_000), "not known": 0}
    rank.events = [one for one in rank.events if one["cat"] == "kernel"]
    assert audited([rank], tmp_path).gaps_ns == {}


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce-scatter"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, ncclWork*)", "send and receive"),
        ("rcclGenericKernel", "collective"),
        ("gloo:all_gather", "all-gather"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(...)", "all-reduce"),
        ("_ZN4vllm24cross_device_reduce_2stageIDF16_Li8EEEv", "all-reduce"),
        ("void tensorrt_llm::kernels::ar_fusion::allreduce_fusion_kernel_oneshot_lamport<...>", "all-reduce"),
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16>(char*)", "all-reduce"),
        ("deep_ep::intranode::dispatch", "all-to-all"),
        ("void one_shot_all_reduce_kernel<float>", "all-reduce"),
        ("nvshmem_alltoall", "all-to-all"),
        ("void mscclpp::allreduceKernel<float>", "all-reduce"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>", ""),
        ("triton_red_fused_all_reduce_add_0", ""),
        ("gemm<warpAllReduce>", ""),
        ("vectorized_gather_kernel", ""),
    ],
)
def test_names_of_collectives(name, operation):
    assert operation_of(name) == operation


def test_names_that_a_user_adds_and_those_that_only_arguments_show(tmp_path):
    rank = Rank(0, 0.0)
    rank.work(1000)
    rank.span("kernel", "my_company::ring_sum<float>", 1000, 0, **{"Collective name": "allreduce"})
    (path,) = World([rank]).write(tmp_path, "groups")
    found = audit_traces([path])
    assert found.work_ns == 2_000_000
    assert any("--collective" in one and "ring_sum" in one for one in found.faults)
    found = audit_traces([path], AuditOptions(collectives=("ring_sum",)))
    assert found.work_ns == 1_000_000
    assert not any("--collective" in one for one in found.faults)
    found = audit_traces([path], AuditOptions(collectives=("ring_sun",)))
    assert any("'ring_sun'" in one for one in found.faults)
