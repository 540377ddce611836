"""Make every table of measured figures in the docs anew from benchmarks/results.

    python benchmarks/docs_tables.py

A table stands between ``<!-- table: NAME -->`` and ``<!-- end of table -->``, and ends with a line for each
result that it is made of: processor, what else ran, how far runs differ. A result that is not there leaves
its table as it is. No figure of a table is typed by hand: tests/docs/test_figures.py finds those.
"""

import argparse
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import gpu_tables
import table_rows
from markdown_table import Table, rows_of, written
from questions import RIVALS
from result_files import ROOT, origin, read

DOCS = ROOT / "docs"
MARKED = re.compile(r"<!-- table: (?P<name>\w+) -->\n.*?<!-- end of table -->", re.DOTALL)
FLEETS = ("4 equal", "8 equal", "5 and 1 at half", "4 and 4 at half")
ITEMS = {"60, 1.0": "60 items", "300, 0.3": "300 items alike", "300, 1.0": "300 items"}
PEERS = (
    "rapidsnark :seconds | ÷ proof = rapidsnark/proof :times"
    " | ÷ (load + first) = rapidsnark/(load+first) :times"
    " | snarkjs :seconds | ÷ proof = snarkjs/proof :times | ÷ (load + first) = snarkjs/(load+first) :times"
)
KEY = "circuit | domain :power | key load :seconds | first proof :seconds | proof :seconds"
STRATEGIES = Table(
    "model | clients | strategy | ran | cpu, ms :,.1f | clock, ms :,.1f | x cpu :,.2f | x clock :,.2f"
    " | first, s :,.2f",
    4,
)
OF_STRATEGIES = ("clients_small", "clients_larger", "clients_larger_100", "clients_batch8")
CLIENTS = {
    "clients_peers": Table(
        "model | clients | peer | note | clock, ms :,.1f | to :,.1f | cpu, ms :,.1f | times evenload :,.2f", 4
    ),  # to: the slowest of several runs
    "clients_auto": Table(
        "model | clients | auto | best by hand | off the best by"
        " | x serial :,.2f", 4, OF_STRATEGIES, table_rows.auto
    ),
    "clients_tuning": Table(
        "model | clients | ran | tuning, s :,.2f | 100 rounds, s :,.1f"
        " | share = {share, %:.1f} %", 3, OF_STRATEGIES,
        table_rows.tuning,
    ),
    **dict.fromkeys(OF_STRATEGIES, STRATEGIES),
    "clients_convolutions": Table(
        "layer | vectors of = vectors | used :yes | forward :,.0f | forward, torch :,.0f | inputs :,.0f"
        " | inputs, torch :,.0f | weights :,.0f | weights, torch :,.0f", 3,
    ),
    "clients_cifar": Table(
        "strategy | ran | cpu, ms a step = cpu, ms :,.2f | clock, ms a step = clock, ms :,.2f | x cpu :,.2f"
        " | x clock :,.2f | GFLOPS :,.0f", 2,
    ),
    "clients_digits": Table(
        "strategy | cpu per round, ms :,.1f | x serial :,.1f | accuracy :,.3f | apart from serial"
        " | first, s :,.2f"
    ),
    "clients_first_rounds": Table(
        "model | clients | rounds | auto | plain, s :,.2f | auto, s :,.2f | auto / plain :,.2f"
        " | loaded :,.2f", 4
    ),
}  # fmt: skip
EXECUTOR = {
    "executor_overhead": Table(
        " = peer | default, µs = default_us :,.2f | CPU, µs = default_cpu_us :,.2f"
        " | one by one, µs = one by one_us :,.1f"
        " | CPU, µs = one by one_cpu_us :,.1f | first result, s = start_s :,.3f | CPU, s = start_cpu_s :,.2f"
        " | close, s = close_s :,.2f"
    ),
    "executor_transport": Table(
        " = peer | streamed, GB/s = streamed_gb_s :,.2f | CPU, ms per item = streamed_cpu_ms :,.1f"
        " | all kept, GB/s = kept_gb_s :,.2f | CPU, ms per item = kept_cpu_ms :,.1f"
    ),
    "executor_startup": Table(
        " = start | first result, ms = bare_first_ms :,.0f | replaced, ms = bare_replace_ms :,.0f"
        " | first result with torch, ms = torch_first_ms :,.0f"
        " | replaced with torch, ms = torch_replace_ms :,.0f"
    ),
    "integrations": Table(
        " = line | empty task, µs = task, us :,.1f | 8 MB arrays, MB/s = 8 MB, MB/s :,.0f"
        " | 300 unequal items on 1 : 2 : 4 : 8 = on four :,.2f",
        rows=lambda pages: [{**row, "on four": row["300 on 1:2:4:8"]} for row in rows_of(pages)],
    ),
    "executor_memory": Table(
        " = peer | tiny items, MB = stream growth_mb :,.0f | µs per item = stream us_per_item :,.2f"
        " | slow reader, MB = slow reader growth_mb :,.0f | a map of 300 MB, MB = map growth_mb :,.0f"
    ),
}
FAULTS = "fault | evenload | multiprocessing.Pool | ProcessPoolExecutor | loky | joblib | mpire | pebble"
PIPELINES = {
    "pipeline_run": Table(
        table_rows.stage_columns, rows=table_rows.stage_runs, said=table_rows.idle_stages
    ),
    "pipeline_planner": Table(
        "case | fleet = named | items | bound = {bound_s:.0f} s | plan = **{ratio:.3f}**"
        " | round-robin = round_robin :.2f"
        " | barrier :.2f"
        " | fixed pools = fixed_pools :.2f", 2, rows=table_rows.chosen_plans, said=table_rows.worst_plans,
    ),
    "pipeline_planner_large": Table(
        "items, devices = {items:,}, {devices}"
        " | four kinds of device = {kinds plan_cpu_s:.1f} s, {kinds ratio:.3f}"
        " | speeds scattered within a kind = {scattered plan_cpu_s:.1f} s, {scattered ratio:.3f}"
        " | stages that only some kinds hold whole = {whole plan_cpu_s:.1f} s, {whole ratio:.3f}",
        rows=lambda pages: table_rows.grouped(
            rows_of(pages), ("items", "devices"), "case", "plan_cpu_s", "ratio"
        ),
    ),
    "pipeline_prediction": Table(
        "stage | activations from = by | predicted | measured | off", 2, rows=table_rows.predicted
    ),
}  # fmt: skip
POLICIES = {
    "schedule_simulation": Table(
        lambda pages: " | ".join(key for key in pages[0]["rows"][0] if not key.endswith(" worst")), 2,
        rows=table_rows.bold_policies,
    ),
    "schedule_simulation_fleets": Table(
        " | ".join(["policy", *(f"{fleet}: {said} = {{{fleet}, {items}:.2f}}" for fleet in FLEETS
                                for items, said in ITEMS.items())]),
        sources=("schedule_simulation",),
        rows=lambda pages: [{key.replace(": ", ", "): row[key] for key in row} for row in pages[0]["fleets"]],
    ),
    "schedule_simulation_learned": Table(
        "items | noise = said | first program = {mark}{first:.2f}{mark} | in input order = in order :.2f"
        " | later programs = {mark}{later:.2f}{mark} | in input order = later in order :.2f", 2,
        rows=table_rows.learned,
    ),
}  # fmt: skip
MERKLE = {
    "merkle": Table(
        "scheme = `{scheme}` | AVX-512 = AVX-512 cpu_ms :ms | SHA-NI = SHA-NI cpu_ms :ms"
        " | AVX2 = AVX2 cpu_ms :ms"
        " | SSE = SSE cpu_ms :ms | hashlib = hashlib cpu_ms :ms"
        " | AVX-512 over hashlib = {AVX-512 faster:.1f}×"
        " | AVX2 over hashlib = {AVX2 faster:.1f}×", rows=partial(table_rows.trees, leaves=100_000),
    ),
    "merkle_poseidon": Table(
        "16,384 leaves = by | CPU time = cpu_ms :ms | per leaf = {µs:.1f} µs", sources=("merkle",),
        rows=lambda pages: [{**row, "µs": row["ns_per_leaf"] / 1e3} for row in rows_of(pages)
                            if (row["scheme"], row["leaves"]) == ("poseidon", 1 << 14)],
    ),
    "merkle_wgsl": Table(
        "scheme = `{scheme}` | WGSL, CPU = WGSL cpu_ms :ms | WGSL, wall = WGSL wall_ms :ms"
        " | hashlib, CPU = hashlib cpu_ms :ms | hashlib, wall = hashlib wall_ms :ms"
        " | by CPU = {WGSL faster:.1f}×",
        sources=("merkle",), rows=partial(table_rows.trees, leaves=1 << 17),
    ),
    "merkle_devices": Table(
        "scheme = `{scheme}` | strategy | workers | busiest worker, CPU = {busiest_cpu_s:.2f} s"
        " | parent, CPU = {parent_cpu_s:.3f} s | wall = {wall_s:.2f} s | ratio to bound = ratio_to_bound :.2f"
        " | by CPU = {by_cpu:.2f}× | by wall = {by_wall:.2f}× | Amdahl = {amdahl:.2f}×", 2,
    ),
}  # fmt: skip
MOE = {
    "moe_routing": Table(
        "instance (slots on GPUs) = instance | one layer, µs a call = one layer us :,.1f"
        " | all layers, µs a call = all layers us :,.0f | times HiGHS :,.0f"
        " | load, equal split = equal split :,.3f"
        " | load, interior point (worst gap) = {interior point:.3f} ({its worst gap %:.1f} %)"
        " | load, exact = exact :,.4f | bound :,.4f"
    ),
    "moe_placement_policy": Table(
        "slots, GPUs, nodes = {slots}, {GPUs}, {nodes} | planner | CPU ms, 58 layers = CPU ms :,.2f"
        " | imbalance :,.4f | worst layer :,.4f | experts twice on a GPU = twins", 2,
    ),
    "moe_placement_search": Table(
        "trace, GPUs, slots = {trace}, {GPUs}, {slots} | placement | mean :,.4f | p99 :,.3f | worst :,.3f"
        " | CPU ms a layer :,.1f", 2,
    ),
    "moe_placement_nodes": Table(
        "placement | split equally :,.3f | routed :,.3f | CPU ms a layer :,.1f"
    ),
    "moe_placement_moves": Table(
        "case | plan | slots refilled = {slots refilled %:.1f} % | batches of transfers = batches"
        " | imbalance, planned on = recent :,.4f | imbalance, later = later :,.4f | CPU ms a layer :,.1f", 2,
    ),
    "moe_dispatch": Table(
        "slots on ranks = {slots} on {ranks} | tokens a rank | whole tokens = whole tokens % :,.3f"
        " | intervals = intervals % :,.3f | dithered sums = dithered % :,.2f | sampled = sampled % :,.2f"
        " | rounded by each rank = floored % :,.2f | equal odds = equal % :,.2f"
    ),
    "moe_planner": Table(
        "experts, slots, ranks = {experts}, {slots}, {ranks} | tokens, ids = {tokens}, {ids}"
        " | µs a call = us a call :,.1f"
        " | with a counter for each slot = us with counter :,.1f | million tokens/s :,.1f"
        " | million ids/s :,.1f"
    ),
}  # fmt: skip
MOE_ENGINES = Table(
    "traffic, tokens a batch = {traffic}, {tokens:,} | EPLB, equal split = EPLB, split equally :,.3f"
    " | EPLB, hash = EPLB, by hash :,.3f | EPLB, in turn :,.3f | search, hash = search, by hash :,.3f"
    " | search, weights = weights :,.3f | weights, own tokens :,.3f | weights, evened out :,.3f"
    " | the same, own tokens = weights, own tokens, summed counts :,.3f | search, exact = exact :,.3f"
)
MOE_CLONES = Table(
    "traffic | ranks | tokens a rank :, | none :,.3f | hash :,.3f | EPLB + LP :,.3f | largest first :,.3f"
    " | evenload :,.3f"
    " | fetches (bound) = {fetches:.1f} ({fetch bound:.1f}) | gap = {gap %:.1f} % | µs = plan us :,.1f"
    " | µs, within 1 % = {plan us, 1 %:,.1f}"
)
ZK = {
    "zk_prove": Table(
        f"{KEY} | process :seconds | process wall :seconds | rapidsnark ÷ process = rapidsnark/process :times"
        f" | memory = {{RSS MB:.0f}} MB"
        f" | {PEERS}", sources=("zk_prove", "zk_prove_1M"), rows=table_rows.circuits,
    ),
    "zk_levels": Table(
        "circuit | domain :power | level = `{level}` | for processors with = processors | proof :seconds"
        " | rapidsnark ÷ proof = rapidsnark/proof :times | process :seconds | process wall :seconds"
        " | rapidsnark ÷ process = rapidsnark/process :times | rapidsnark :seconds"
        " | snarkjs ÷ proof = snarkjs/proof :times | snarkjs ÷ process = snarkjs/process :times", 4,
    ),
    "zk_wgsl": Table(
        f"{KEY} | wall :seconds | longest submission = {{longest dispatch, ms:.0f}} ms | snarkjs :seconds"
        " | ÷ proof = snarkjs/proof :times"
    ),
    "zk_batch": Table(
        "devices = `{devices}` | start and key load = {start_s:.2f} s | 16 proofs = {work_s:.2f} s"
        " | latency of one = {latency_s:.2f} s | proofs/s = proofs_per_s :.2f"
        " | ratio to bound = ratio_to_bound :.2f"
        " | speed-up = {speed_up:.2f}× | efficiency :.2f | spread of utilisation = utilisation_std :.2f"
        " | with start = {speed_up_with_start:.2f}× | Amdahl = {amdahl_with_start:.2f}×"
    ),
    "zk_kernels_ifma52": Table(
        "kernel (ifma52) = kernel | size :proofs | CPU ms = ms :.1f",
    ),
    "zk_verify": Table(
        "verification = how | CPU ms a proof = cpu_ms :.2f | one by one over it = {times:.1f}×"
    ),
    "zk_service": Table(
        "devices | clients | requests | workers killed | lost | wrong | proofs/s :.0f | p50 ms :.0f"
        " | p99 ms :.0f"
        " | longest ms :.0f"
    ),
}  # fmt: skip
TRAINING = {
    "unequal_training": Table(
        "speeds of the ranks = fleet | DDP = DDP x_bound :.2f | by hand = DDP, shares by hand x_bound :.2f"
        " | `EvenBatches` = EvenBatches x_bound :.2f"
        " | loss differs, by hand = DDP, shares by hand loss_differs :.0e"
        " | loss differs, `EvenBatches` = EvenBatches loss_differs :.0e",
        rows=lambda p: table_rows.grouped(rows_of(p), ("fleet",), "method", "x_bound", "loss_differs"),
    ),
    "unequal_training_slows": Table(
        " = half the speed from step {slower_from_step} on | x bound before = x_bound_before :.2f"
        " | steps until shares follow = steps_until_shares_follow | x bound after = x_bound_after :.2f"
        " | its share before = shares_before | and after = shares_after"
        " | largest change after that = largest_change_after",
        sources=("unequal_training",), rows=table_rows.slowed,
    ),
}  # fmt: skip
PAGES: Mapping[str, Mapping[str, Table]] = {
    "clients-measured.md": CLIENTS,
    "how-to/audit.md": {
        "audit_traces": Table(
            "accelerator | what ran = what | recorded by = source | time, ms = wall_ms :,.1f | work :.1%"
            " | exchange :.1%"
            " | launch gaps = launch_gaps :.1%"
            " | longer gaps = longer_gaps :.1%"
            " | the program was in = program", 3,
        ),
        "audit_delays": Table(
            "ranks | delays | named, rank and place = named"
            " | waited, s, by the ranks' clocks = waited_s :,.3f"
            " | by the audit = said_s :,.3f | mean error of a rank = mean_error :.1%"
            " | worst = worst_error :.1%"
            " | without delays, s = even_waited_s :,.3f | by the audit = even_said_s :,.3f", 1,
        ),
    },
    "explanation/executor-speed.md": EXECUTOR,
    "explanation/faults.md": {"executor_faults": Table(FAULTS, 8)},
    "explanation/pipelines.md": PIPELINES,
    "explanation/policies.md": POLICIES,
    "explanation/same-bits.md": {
        "exact_training": Table(
            "model, optimizer, type = kind | histories | that differ = histories that differ | fleets | joins"
            " | leaves | kills | steps :, | changes of shares :, | comparisons :,"
        ),
        "exact_levels": Table(
            "setting = `{setting}` | MLP, float32 = mlp float32 | convolution = conv float32"
            " | attention = attention float32 | MLP, bfloat16 = mlp bfloat16 | convolution = conv bfloat16"
            " | attention = attention bfloat16 | refused = told", 8,
        ),
    },
    "how-to/many-adapters.md": {
        "clients_adapters": Table(
            "tokens | rank | adapters | serial, ms :,.2f | fused, ms :,.2f | times :,.2f | pays from", 3,
            rows=lambda pages: [{**row, "pays from": row["from"] or "never"} for row in rows_of(pages)],
        )
    },
    "how-to/clone-experts.md": {
        "moe_clones": MOE_CLONES,
        "moe_clone_fetches": Table(
            "traffic | tokens of a rank :, | lowest = {lowest, fetches:.1f} ({lowest, bound:.1f})"
            " | within 1 % = {1 %, fetches:.1f} ({1 %, bound:.1f}) | gap = {gap %:.1f} % | UltraEP"
            " | peak = 1 %, peak :.3f | domains of 16 = {domains, fetches:.1f} ({domains, bound:.1f})"
            " | peak there = domains, peak :.3f"
        ),
    },
    "how-to/moe-in-engines.md": {
        "moe_engines": MOE_ENGINES,
        "moe_moves": Table(
            "stream | planner | a fetch costs = {fetch, % of a window:g} % of a window"
            " | never, over bound :,.3f | rule :,.3f | always :,.3f | hindsight :,.3f"
            " | rule, over hindsight = rule over hindsight :,.3f | layers moved", 3,
        ),
        "moe_in_vllm": Table(
            "policy | exchange = mode | ranks | answers | steps | rearranged | imbalance :.3f"
            " | slots moved each time = moved :.1f", 4,
        ),
    },
    "index.md": {
        "front": Table(
            "what | evenload = ours | beside it = others | devices = how", 4,
            ("schedule_simulation", "pipeline_run", "unequal_training", "moe_routing", "clients_peers"),
            table_rows.front,
        )
    },
    "explanation/referee.md": {
        "referee_outcomes": Table(f"case | {' | '.join(RIVALS)}", 7),
        "referee": Table("case | " + " | ".join(f"{name} :or word" for name in RIVALS)),
        "referee_real": Table("case | " + " | ".join(f"{name} :or word" for name in RIVALS)),
    },
    "how-to/exec.md": {
        "exec_scripts": Table(
            "script | what it uses = kind | outputs equal = equal | with a worker killed = killed"
            " | lines changed = changed | calls :,",
            4,
        ),
    },
    "how-to/ray.md": {
        "executor_ray": Table(
            " = peer | first result, s = first_s :,.1f | empty task, µs = empty_us :,.1f"
            " | CPU, µs = empty_cpu_us :,.1f"
            " | 8 MB arrays, MB/s = arrays_mb_s :,.0f | CPU, ms per item = array_cpu_ms :,.1f"
            " | 60 unequal items = s60 :,.2f | 300 unequal items = s300 :,.2f"
        )
    },
    "how-to/train-on-unequal-gpus.md": TRAINING,
    "merkle.md": MERKLE,
    "moe-measured.md": MOE,
    "zk-measured.md": ZK,
}  # fmt: skip


def sources(page: str, name: str) -> tuple[str, ...]:
    """The results that the table ``name`` of ``page`` is made of."""
    return PAGES[page][name].sources or (name,)


def filled(page: str, text: str) -> str:
    """``text`` of ``page`` with every marked table made anew. Raises KeyError for a mark without a table."""

    def fill(match: re.Match[str]) -> str:
        name = match["name"]
        table = PAGES[page][name]
        try:
            found = [read(source) for source in sources(page, name)]
        except FileNotFoundError:
            return match[0]
        lines = "\n".join(dict.fromkeys(origin(one) + "  " for one in found)).rstrip()
        return f"<!-- table: {name} -->\n{written(table, found)}\n\n{lines}\n<!-- end of table -->"

    return MARKED.sub(fill, text)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    for page in PAGES:
        path: Path = DOCS / page
        before = path.read_text(encoding="utf-8")
        after = filled(page, before)
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(path.relative_to(ROOT))
    gpu_tables.main([])


if __name__ == "__main__":
    main()
