"""Clones made anew for each batch, beside other ways: the busiest rank's load, fetches, and time to plan.

    python benchmarks/moe_clones.py [--batches 20] [--spare 2] [--fetches]

Batches are cut from the traces beside the tests (64 experts), a piece of 64 tokens for each piece of a rank's
batch, drawn at random with repetition as the traces are shorter than a large batch; and drawn from log-normal
odds (256 experts). Experts are at home in order of ids. The ways:

    none             no clones
    hash             each spare slot takes one of the most used experts by a hash, and ids are split evenly
    EPLB + LP        EPLB's policy with as many slots, placed on the batches before, and the exact router;
                     nothing is fetched for a batch
    largest first    from the busiest rank its largest expert to the idlest with a slot, again and again
    evenload         ``moe.clone_experts``

The load is over the mean. Fetches beside their bound, and times, are those of ``moe.clone_experts`` and
``largest first`` (plain Python, not timed). With --fetches instead, of 64 ranks: how many fewer fetches do
within 1 % of the lowest peak, without a fetch for fewer tokens than 1 % of a rank's share, also within
domains of 16 ranks. Three of the batches are made as UltraEP's own test makes them (its README says what its
planner did with them: EP64, 256 experts, 8,192 tokens a rank, top 8, two spare slots).
"""

import argparse

import numpy as np
from moe_workloads import popularity, traces
from record import record

from evenload.balance.flow import ReplicaGraph, Router
from evenload.cli.bench.measure.timing import median_cpu_s
from evenload.moe import Cloner, rebalance_experts

TOP_K = 8
PIECE = 64


def from_trace(ids, n_ranks, tokens, n, rng):
    n_pieces = -(-n_ranks * tokens // PIECE)
    for layer in rng.integers(0, len(ids), n):
        starts = rng.integers(0, ids.shape[1] - PIECE, n_pieces)
        picked = (starts[:, None] + np.arange(PIECE)).reshape(-1)[: n_ranks * tokens]
        history = np.bincount(ids[layer, : ids.shape[1] // 2].reshape(-1), minlength=64)
        yield history, np.bincount(ids[layer, picked].reshape(-1), minlength=64)


def from_odds(n_ranks, tokens, n, rng):
    windows = popularity(1, 256, 0.7, int(rng.integers(1 << 30)))
    for _ in range(n):
        before, now = next(windows)[0], next(windows)[0]
        yield rng.multinomial(1 << 20, before), rng.multinomial(n_ranks * tokens * TOP_K, now)


def as_ultraep(imbalance, rng, n_ranks=64, n_home=4, tokens=8192):
    """[experts] counts: ranks' odds fall as a power of their number, chosen for the imbalance; on each, its
    experts' fall as the fourth power; each token has 8 different experts."""

    def odds(power):
        weight = np.arange(1.0, n_ranks + 1)[:, None] ** -power * np.arange(1.0, n_home + 1) ** -4.0
        return weight.ravel() / weight.sum()

    def chosen(power):  # about: an expert is among a token's 8 with 1 - exp(-x odds)
        low, high = 0.0, 1e12
        for _ in range(200):
            middle = (low + high) / 2
            is_few = (1 - np.exp(-middle * odds(power))).sum() < TOP_K
            low, high = (middle, high) if is_few else (low, middle)
        return (1 - np.exp(-high * odds(power))).reshape(n_ranks, n_home).sum(axis=1)

    low, high = 0.0, 8.0
    for _ in range(40):
        middle = (low + high) / 2
        loads = chosen(middle)
        low, high = (middle, high) if loads.max() < imbalance * loads.mean() else (low, middle)
    counts = np.zeros(n_ranks * n_home, np.int64)
    for _ in range(n_ranks):
        first = rng.exponential(size=(tokens, len(counts))) / odds(high)
        ids = np.argpartition(first, TOP_K, axis=1)[:, :TOP_K]
        counts += np.bincount(ids.ravel(), minlength=len(counts))
    return counts


def fetches_row(name, batches, n_experts, n_spare, published=""):
    homes, mean = np.arange(n_experts) * 64 // n_experts, int(batches[0].sum()) // 64
    rules = {"tolerance": 1.01, "least_tokens": mean // 100}
    cloners = [
        Cloner(homes, n_spare, **options) for options in ({}, rules, rules | {"domains": np.arange(64) // 16})
    ]
    lowest, near, apart = ([cloner.plan(counts) for counts in batches] for cloner in cloners)
    row = {"traffic": name, "experts": n_experts, "tokens of a rank": mean, "UltraEP": published}
    for column, plans in (("lowest", lowest), ("1 %", near), ("domains", apart)):
        peak = np.mean([plan.peak * 64 / plan.totals.sum() for plan in plans])
        row |= {f"{column}, peak": round(float(peak), 4)}
        row |= {f"{column}, fetches": round(float(np.mean([plan.fetches for plan in plans])), 1)}
        row |= {f"{column}, bound": round(float(np.mean([plan.fetch_bound for plan in plans])), 1)}
    return row | {"gap %": round(100 * float(np.mean([plan.fetch_gap for plan in near])), 1)}


def measure_fetches(given):
    rows = []
    for imbalance, published in ((1.51, "38"), (2.01, "46"), (3.03, "51")):
        batch = as_ultraep(imbalance, np.random.default_rng(33))
        rows.append(fetches_row(f"as UltraEP's, {imbalance}", [batch], 256, given.spare, published))
    for tokens in (1024, 4096):
        for name, ids in traces().items():
            batches = from_trace(ids, 64, tokens, given.batches, np.random.default_rng([64, tokens]))
            rows.append(fetches_row(name, [counts for _, counts in batches], 64, given.spare))
        batches = from_odds(64, tokens, given.batches, np.random.default_rng([64, tokens]))
        rows.append(fetches_row("log-normal", [counts for _, counts in batches], 256, given.spare))
    record("moe_clone_fetches", rows, is_of_speed=False)


def by_hash(counts, homes, spare):
    """The busiest rank's load if spare slots take hot experts by a hash, and ids go evenly to all copies."""
    n_ranks = len(spare)
    hot = np.argsort(-counts, kind="stable")[: max(1, int(spare.sum()) // 2)]
    held = [set(np.flatnonzero(homes == rank).tolist()) for rank in range(n_ranks)]
    slots = [(rank, i) for rank in range(n_ranks) for i in range(spare[rank])]
    for rank, i in slots:
        held[rank].add(int(hot[(rank * 2654435761 + i * 40503) % len(hot)]))
    copies = np.bincount([e for of in held for e in of], minlength=len(counts))
    return max(sum(counts[e] / copies[e] for e in of) for of in held)


def by_placement(history, counts, n_ranks, n_spare):
    slots = -(-(len(counts) + n_spare) // n_ranks) * n_ranks
    phy2log = np.asarray(rebalance_experts(history[None], slots, 1, 1, n_ranks).phy2log)
    return int(Router(ReplicaGraph.from_slots(phy2log, len(counts), n_ranks)).solve(counts).loads.max())


def largest_first(counts, homes, spare):
    """(the busiest rank's load, fetches) of the usual greedy."""
    loads = np.bincount(homes, counts, len(spare)).astype(np.int64)
    rest, left, fetches = counts.copy(), spare.copy(), 0
    goal = -(-int(counts.sum()) // len(spare))
    while True:
        busiest = int(loads.argmax())
        mine = np.flatnonzero((homes == busiest) & (rest > 0))
        free = np.flatnonzero((left > 0) & (loads < goal))
        if loads[busiest] <= goal or not len(mine) or not len(free):
            return int(loads.max()), fetches
        expert, idlest = mine[rest[mine].argmax()], free[loads[free].argmin()]
        tokens = min(rest[expert], loads[busiest] - goal, goal - loads[idlest])
        loads[busiest], loads[idlest] = loads[busiest] - tokens, loads[idlest] + tokens
        rest[expert], left[idlest], fetches = rest[expert] - tokens, left[idlest] - 1, fetches + 1


def planning_us(cloner, batches):
    """Median CPU µs of a plan, on one thread."""
    return median_cpu_s(cloner.plan, 20, [(counts,) for counts in batches])[0] * 1e6


def measure(name, source, n_experts, n_ranks, tokens, n_spare):
    homes, spare = np.arange(n_experts) * n_ranks // n_experts, np.full(n_ranks, n_spare)
    cloner, found = Cloner(homes, spare), []
    batches = list(source)
    for history, counts in batches:
        plan, mean = cloner.plan(counts), counts.sum() / n_ranks
        greedy, fetches = largest_first(counts, homes, spare)
        loads = (
            np.bincount(homes, counts, n_ranks).max(), by_hash(counts, homes, spare),
            by_placement(history, counts, n_ranks, n_spare * n_ranks), greedy, plan.peak, plan.peak_bound,
        )  # fmt: skip
        found.append(
            [*(load / mean for load in loads), fetches, plan.fetches, plan.fetch_bound, plan.fetch_gap]
        )
    means = np.mean(found, axis=0).tolist()
    names = ("none", "hash", "EPLB + LP", "largest first", "evenload", "bound")
    row = {"traffic": name, "experts": n_experts, "ranks": n_ranks, "tokens a rank": tokens}
    row |= {column: round(mean, 4) for column, mean in zip(names, means[:6], strict=True)}
    row |= {"fetches, largest first": round(means[6], 1), "fetches": round(means[7], 1)}
    row |= {"fetch bound": round(means[8], 1), "gap %": round(100 * means[9], 1)}
    near, all_counts = Cloner(homes, spare, tolerance=1.01), [counts for _, counts in batches]
    row |= {"plan us": round(planning_us(cloner, all_counts), 1)}
    return row | {"plan us, 1 %": round(planning_us(near, all_counts), 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batches", type=int, default=20, help="batches of each row")
    parser.add_argument("--spare", type=int, default=2, help="spare slots of each rank")
    parser.add_argument("--fetches", action="store_true", help="how many, within a tolerance")
    given, rows = parser.parse_args(), []
    if given.fetches:
        return measure_fetches(given)
    for n_ranks in (8, 16, 32, 64):
        for tokens in (128, 1024, 4096):
            for name, ids in traces().items():
                rng = np.random.default_rng([n_ranks, tokens])
                source = from_trace(ids, n_ranks, tokens, given.batches, rng)
                rows.append(measure(name, source, 64, n_ranks, tokens, given.spare))
            rng = np.random.default_rng([n_ranks, tokens])
            source = from_odds(n_ranks, tokens, given.batches, rng)
            rows.append(measure("log-normal", source, 256, n_ranks, tokens, given.spare))
    real = [row["gap %"] for row in rows if row["experts"] == 64]
    return record("moe_clones", rows, mean_gap_of_traces=round(float(np.mean(real)), 2))


if __name__ == "__main__":
    main()
