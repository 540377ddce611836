"""The question that each result answers, and the plot that shows the answer.

The docs' page of results is made of this (scripts/benchmark_page.py), door by door.
A new result needs a line here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Row = Mapping[str, Any]
Bar = tuple[str, float]

DOORS = ("Jobs", "Pipelines", "Training", "Experts", "Many small models", "Proofs and trees")
MOST_BARS = 16


@dataclass(frozen=True)
class ByRow:
    """A bar for each row that ``where`` lets through: named by columns ``names``, as long as ``value``."""

    names: tuple[str, ...]
    value: str
    unit: str
    is_less_better: bool = True
    where: Row = field(default_factory=dict)
    is_log: bool = False

    def bars(self, rows: list[Row]) -> Iterator[Bar]:
        for row in _fitting(rows, self.where):
            if isinstance(row.get(self.value), int | float):
                yield (
                    ", ".join(_words(name, row[name]) for name in self.names if row.get(name)),
                    row[self.value],
                )


@dataclass(frozen=True)
class ByColumn:
    """A bar for each column of the first row that ``where`` lets through, by its name or as ``called``."""

    columns: tuple[str, ...]
    unit: str
    is_less_better: bool = True
    where: Row = field(default_factory=dict)
    is_log: bool = False
    called: Mapping[str, str] = field(default_factory=dict)

    def bars(self, rows: list[Row]) -> Iterator[Bar]:
        for row in _fitting(rows, self.where)[:1]:
            found = [name for name in self.columns if isinstance(row.get(name), int | float)]
            yield from ((self.called.get(name, name), row[name]) for name in found)


@dataclass(frozen=True)
class Passed:
    """A bar for each of the columns: in how many rows it says ``ok``."""

    columns: tuple[str, ...]
    unit: str
    is_less_better: bool = False
    is_log: bool = False

    def bars(self, rows: list[Row]) -> Iterator[Bar]:
        yield from ((name, sum(row.get(name) == "ok" for row in rows)) for name in self.columns)


@dataclass(frozen=True)
class Question:
    """What is asked, behind which door a reader looks for it, and the plot of the answer."""

    door: str
    asks: str
    plot: ByRow | ByColumn | Passed

    def bars(self, rows: list[Row]) -> list[Bar]:
        return list(self.plot.bars(rows))[:MOST_BARS]


def _words(name: str, value: Any) -> str:
    """A cell as a part of a bar's name: a number needs its column's."""
    return f"{value:,} {name}" if isinstance(value, int | float) else str(value)


def _fitting(rows: list[Row], where: Row) -> list[Row]:
    return [row for row in rows if all(row.get(name) == value for name, value in where.items())]


JOBS, PIPES, TRAIN, EXPERTS, SMALL, PROOFS = DOORS
PEERS = ("evenload", "multiprocessing.Pool", "ProcessPoolExecutor", "loky", "joblib", "mpire", "pebble")
LENET_20 = {"model": "LeNet-5", "clients": 20}
LENET_100 = {"model": "LeNet-5", "clients": 100}
ROUTED = (
    "EPLB, split equally",
    "EPLB, by hash",
    "search, by hash",
    "weights",
    "weights, evened out",
    "exact",
)

RIVALS = ("evenload", "Ray Data", "Dask", "joblib/loky", "multiprocessing.Pool", "accelerate split")

QUESTIONS: dict[str, Question] = {
    "referee": Question(JOBS, "How close to the best do others come on the same work?",
        ByColumn(RIVALS, "share of the best possible, 451 items on 1 : 2 : 4 : 8", False)),
    "referee_outcomes": Question(JOBS, "Who gets through the same work when something breaks?",
        Passed(RIVALS, "ways to break after which every item is done")),
    "referee_real": Question(JOBS, "And on real processors?",
        ByColumn(RIVALS, "share of the best possible, two works on 2 cores", False)),
    "exec_scripts": Question(JOBS, "Do unchanged public scripts say the same through evenload exec?",
        ByRow(("script",), "calls", "calls dealt, by script", is_log=True)),
    "executor_overhead": Question(JOBS, "What does an empty task cost?",
        ByRow(("peer",), "one by one_us", "µs a task, one by one", is_log=True)),
    "executor_startup": Question(JOBS, "How long until the first result of a new worker?",
        ByRow(("start",), "torch_first_ms", "ms, with torch imported")),
    "executor_transport": Question(JOBS, "How fast do large arrays reach workers?",
        ByRow(("peer",), "streamed_gb_s", "GB/s", False)),
    "executor_memory": Question(JOBS, "Does memory grow while a long stream of items runs?",
        ByRow(("peer",), "stream growth_mb", "MB more at the most, tiny items from a generator")),
    "executor_faults": Question(JOBS, "What is left of a run when something breaks?",
        Passed(PEERS, "faults survived with every healthy result, and nothing left behind")),
    "executor_ray": Question(JOBS, "What does dealing by evenload bring on a Ray cluster?",
        ByRow(("peer",), "s300", "share of the best possible, 300 items", False)),
    "integrations": Question(JOBS, "Is anything lost behind joblib, futures and datasets?",
        ByRow(("line",), "300 on 1:2:4:8", "share of the best possible, 300 items on 1 : 2 : 4 : 8", False)),
    "schedule_simulation": Question(JOBS, "Which policy comes closest to the bound when speeds drift?",
        ByRow(("policy", "told"), "mid drift", "share of the best possible, simulated", False)),
    "schedule_simulation_learned": Question(JOBS, "What does it bring to learn how long items take?",
        ByColumn(("in order", "first", "later in order", "later"), "share of the best, simulated", False)),
    "audit_delays": Question(JOBS, "Does an audit name the rank that came late, and how much it cost?",
        ByColumn(("waited_s", "said_s"), "s that ranks waited",
                 called={"waited_s": "by the ranks' own clocks", "said_s": "by the audit"})),
    "audit_traces": Question(JOBS, "How busy are accelerators in traces that others published?",
        ByRow(("accelerator", "what"), "work", "share of the time that was work", False)),
    "chaos": Question(JOBS, "Which faults did random programs meet?",
        ByRow(("fault",), "happened", "times that it happened", False)),
    "pipeline_run": Question(PIPES, "How close does a pipeline come on unequal devices?",
        ByRow(("way",), "ratio", "times the bound", where={"fleet": "unequal", "draw": 0})),
    "pipeline_planner": Question(PIPES, "What does a plan gain over dealing in turn?",
        ByColumn(("ratio", "fixed_pools", "barrier", "round_robin"), "times the bound",
                 where={"fleet": "random 7", "items": 250})),
    "pipeline_planner_large": Question(PIPES, "How long does it take to plan for hundreds of devices?",
        ByRow(("case", "items", "devices"), "plan_cpu_s", "s of CPU time")),
    "pipeline_prediction": Question(PIPES, "How far off are memory and time that were predicted?",
        ByRow(("what", "stage", "from"), "off", "of what was measured; below 0: too little")),
    "pipeline_reuse": Question(PIPES, "What does a result cost that is there already?",
        ByRow(("results", "from", "stages"), "cpu_ms_a_result", "ms of CPU time a result")),
    "unequal_training": Question(TRAIN, "Does a slow GPU still set the pace of a training step?",
        ByRow(("fleet", "method"), "x_bound", "times the bound")),
    "exact_training": Question(TRAIN, "Are weights the same bits on fleets that join, leave and are killed?",
        ByRow(("kind",), "comparisons", "times all weights were compared, and equal", False)),
    "exact_levels": Question(TRAIN, "Which settings of a processor change the weights of an exact training?",
        ByRow(("setting",), "n_other", "of six models have other weights")),
    "exact_price": Question(TRAIN, "What does a step cost whose gradient is exact?",
        ByRow(("model", "method", "grain"), "step_ms", "ms a step")),
    "moe_routing": Question(EXPERTS, "How long does the exact optimum of a batch's routing take?",
        ByRow(("instance",), "one layer us", "µs a layer")),
    "moe_planner": Question(EXPERTS, "How long is a whole call, from expert ids to slots?",
        ByRow(("experts", "slots", "ranks", "tokens"), "us a call", "µs a call")),
    "moe_dispatch": Question(EXPERTS, "How far do dealt tokens stray from the shares that were computed?",
        ByColumn(("whole tokens %", "intervals %", "dithered %", "sampled %", "floored %", "equal %"),
                 "% more than the optimum",
                 where={"slots": 288, "tokens a rank": 512})),
    "moe_in_vllm": Question(EXPERTS, "How even are the ranks of a whole vLLM, by its own counts?",
        ByRow(("policy", "mode", "ranks"), "imbalance", "busiest rank's tokens over the mean")),
    "moe_engines": Question(EXPERTS, "How even are GPUs inside of serving engines?",
        ByColumn(ROUTED, "busiest GPU over mean", where={"traffic": "law", "tokens": 2048})),
    "moe_clones": Question(EXPERTS, "What do copies that are made for one batch bring?",
        ByColumn(("none", "hash", "EPLB + LP", "largest first", "evenload", "bound"), "busiest GPU over mean",
                 where={"traffic": "law", "ranks": 32, "tokens a rank": 4096})),
    "moe_clone_fetches": Question(EXPERTS, "How many fetches does one percent of balance save?",
        ByColumn(("lowest, fetches", "1 %, fetches", "1 %, bound"), "experts fetched for a batch",
                 where={"traffic": "as UltraEP's, 2.01"})),
    "moe_placement_policy": Question(EXPERTS, "How long does the standard placement take to compute?",
        ByRow(("planner", "slots", "GPUs", "nodes"), "CPU ms", "ms of CPU time", is_log=True)),
    "moe_placement_search": Question(EXPERTS, "How much evener is a placement that was searched for?",
        ByRow(("placement", "slots"), "mean", "busiest GPU over mean",
              where={"trace": "law", "GPUs": 16})),
    "moe_placement_moves": Question(EXPERTS, "How few experts must move when traffic changes?",
        ByRow(("plan",), "recent", "busiest GPU over mean, on recent traffic",
              where={"case": "intent to law"})),
    "moe_moves": Question(EXPERTS, "What does serving cost with moves, beside never moving?",
        ByColumn(("rule", "always", "hindsight"), "cost over never moving",
                 where={"stream": "made up, drifting", "planner": "EPLB", "fetch, % of a window": 10.0})),
    "moe_placement_nodes": Question(EXPERTS, "What does it cost to keep copies on their node?",
        ByRow(("placement",), "routed", "busiest GPU over mean, routed")),
    "clients_small": Question(SMALL, "How long is a round of 20 small models?",
        ByRow(("strategy",), "clock, ms", "ms a round", where={"model": "64-32-10", "clients": 20})),
    "clients_larger": Question(SMALL, "And of 20 convolutional ones?",
        ByRow(("strategy",), "clock, ms", "ms a round", where=LENET_20)),
    "clients_larger_100": Question(SMALL, "And of a hundred?",
        ByRow(("strategy",), "clock, ms", "ms a round", where=LENET_100)),
    "clients_batch8": Question(SMALL, "What is left of it on one core, with batches of eight?",
        ByRow(("strategy",), "cpu, ms", "ms of CPU time a round", where=LENET_20)),
    "clients_cifar": Question(SMALL, "How near to the processor's limits is a step on pictures?",
        ByRow(("strategy",), "clock, ms", "ms a step of one client")),
    "clients_convolutions": Question(SMALL, "How fast are our convolutions beside torch's?",
        ByRow(("layer",), "forward", "GFLOPS forward; pooling: million inputs a second", False)),
    "clients_digits": Question(SMALL, "Is the accuracy the same on real digits, and what is a round?",
        ByRow(("strategy",), "cpu per round, ms", "ms of CPU time a round")),
    "clients_first_rounds": Question(SMALL, "Does it pay in the first rounds already?",
        ByRow(("model", "clients", "rounds"), "auto / plain", "of plain torch's time, start included")),
    "clients_peers": Question(SMALL, "How long is a round beside Flower, FedJAX, pfl and JAX?",
        ByRow(("peer",), "clock, ms", "ms a round", where={"model": "64-32-10", "clients": 20}, is_log=True)),
    "clients_adapters": Question(SMALL, "When do many adapters of one model train faster together?",
        ByRow(("tokens", "rank", "adapters"), "times", "times as fast as one after another", False)),
    "zk_prove": Question(PROOFS, "How long does a proof take on a CPU?",
        ByRow(("circuit",), "proof", "s of CPU time a proof, key loaded")),
    "zk_prove_1M": Question(PROOFS, "And one of a million constraints?",
        ByColumn(("set-up", "key load", "first proof", "proof", "snarkjs"), "s of CPU time", is_log=True)),
    "zk_levels": Question(PROOFS, "What does it take on other processors?",
        ByRow(("circuit", "level"), "proof", "s of CPU time a proof")),
    "zk_wgsl": Question(PROOFS, "Does it run on any vendor's GPU? On a software one, that is:",
        ByRow(("circuit",), "proof", "s of CPU time a proof, software Vulkan")),
    "zk_batch": Question(PROOFS, "Do two devices prove twice as much?",
        ByRow(("devices",), "proofs_per_s", "proofs a second", False)),
    "zk_service": Question(PROOFS, "How long does one wait for a proof while workers are being killed?",
        ByColumn(("p50 ms", "p99 ms", "longest ms"), "ms")),
    "zk_verify": Question(PROOFS, "How long does it take to verify proofs?",
        ByRow(("how",), "cpu_ms", "ms of CPU time a proof", is_log=True)),
    "zk_kernels_ifma52": Question(PROOFS, "What do the kernels of a proof take?",
        ByRow(("kernel", "size"), "ms", "ms", is_log=True)),
    "zk_kernels_word64": Question(PROOFS, "And on a processor without vectors?",
        ByRow(("kernel", "size"), "ms", "ms", is_log=True)),
    "merkle": Question(PROOFS, "How much faster are trees than with Python's hashlib?",
        ByRow(("by", "leaves"), "times_faster", "times as fast", False, where={"scheme": "rfc6962"})),
    "merkle_devices": Question(PROOFS, "Do two workers hash twice as fast?",
        ByRow(("scheme", "strategy", "workers"), "wall_s", "s for ten million leaves")),
}  # fmt: skip
