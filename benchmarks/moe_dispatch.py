"""When ids are sent by a routing: the busiest GPU's load over the least that any routing could have.

    python benchmarks/moe_dispatch.py [--layers 10] [--batches 20]

Placements are EPLB's; every rank draws its ids from the layer's distribution. The bound is the linear
program's optimum (HiGHS), in fractions of tokens; "whole tokens" is what no dispatch of whole ones can avoid.
All but the last line route exactly first, and then

    intervals   exact prefix intervals of all-gathered counts (``Dispatcher.exact_shares``)
    dithered    what an all-reduce allows (``Dispatcher.dithered_shares``)
    sampled     each id draws its slot with the quotas' odds, as SGLang does
    floored     each rank alone rounds its part of each slot down, the rest to the last, as LPLB's kernel does
    equal       each id draws a slot with equal odds: no routing at all

and of the ids of experts with several slots, how many stay on their GPU or in their node (8 GPUs).
"""

import argparse
import math

import numpy as np
from moe_workloads import popularity, synthetic
from record import record
from router_program import least_peak

from evenload.balance.flow import ReplicaGraph, Router
from evenload.moe.routing.dispatch import Dispatcher

TOP_K = 8
SHAPES = [(320, 32), (288, 8)]  # slots, GPUs
TOKENS = [8, 32, 128, 512]  # of each rank
WAYS = ("intervals", "dithered", "sampled", "floored", "equal")


def shares_by(way, dispatcher, quotas, counts, rng):
    """[ranks, slots] ids that each rank sends to each slot."""
    graph, n_ranks = dispatcher.graph, len(counts)
    if way == "intervals":
        return np.stack([dispatcher.exact_shares(quotas, counts, rank) for rank in range(n_ranks)])
    totals = counts.sum(axis=0)
    if way == "dithered":
        return np.stack(
            [
                dispatcher.dithered_shares(quotas, totals, counts[rank], rank, n_ranks)
                for rank in range(n_ranks)
            ]
        )
    shares = np.zeros((n_ranks, graph.n_slots), np.int64)
    for expert in np.flatnonzero(totals):
        slots = dispatcher.slots[dispatcher.slot_start[expert] : dispatcher.slot_start[expert + 1]]
        odds = np.full(len(slots), 1 / len(slots)) if way == "equal" else quotas[slots] / totals[expert]
        if way == "floored":
            ends = np.floor(counts[:, expert, None] * np.cumsum(odds) + 1e-9).astype(np.int64)
            ends[:, -1] = counts[:, expert]
            shares[:, slots] = np.diff(ends, axis=1, prepend=0)
        else:
            shares[:, slots] = rng.multinomial(counts[:, expert], odds)
    return shares


def staying(graph, shares, nodes):
    """(GPU, node) shares in per cent, among ids of experts with several slots."""
    shared = np.isin(graph.phy2log[0], graph.row2log)
    ranks, gpus = np.arange(len(shares))[:, None], graph.slot2gpu[None]
    total = shares[:, shared].sum()
    here = (shares * (ranks == gpus))[:, shared].sum()
    near = (shares * (nodes[ranks] == nodes[gpus]))[:, shared].sum()
    return here / total, near / total


def measure(n_slots, n_gpus, n_tokens, n_layers, n_batches):
    rng = np.random.default_rng(n_tokens)
    phy2log, _ = synthetic(n_slots, n_gpus, 1, n_batches=1, n_layers=n_layers)
    windows = popularity(n_layers, 256, 0.7, 1)
    next(windows)
    odds = next(windows)
    nodes = np.arange(n_gpus) // 8
    peaks, stay = {way: [] for way in WAYS}, {"near first": [], "in order": []}
    bound = whole = 0.0
    for layer in range(n_layers):
        graph = ReplicaGraph.from_slots(phy2log[layer], 256, n_gpus)
        router, dispatcher = Router(graph), Dispatcher(graph, nodes=nodes)
        in_order = Dispatcher(graph, rank2gpu=[-1] * n_gpus)
        for _ in range(n_batches):
            counts = rng.multinomial(n_tokens * TOP_K, odds[layer], n_gpus)
            quotas = router.solve(counts.sum(axis=0)).quotas[0]
            least = least_peak(graph, 0, counts.sum(axis=0))
            bound, whole = bound + least, whole + math.ceil(least - 1e-4)
            for way in WAYS:
                shares = shares_by(way, dispatcher, quotas, counts, rng)
                peaks[way].append(np.bincount(graph.slot2gpu, shares.sum(axis=0), n_gpus).max())
                if way == "intervals":
                    stay["near first"].append(staying(graph, shares, nodes))
            stay["in order"].append(
                staying(graph, shares_by("intervals", in_order, quotas, counts, rng), nodes)
            )
    row = {"slots": n_slots, "ranks": n_gpus, "tokens a rank": n_tokens}
    row["whole tokens %"] = round(100 * (whole / bound - 1), 3)
    row |= {f"{way} %": round(100 * (float(np.sum(peaks[way])) / bound - 1), 3) for way in WAYS}
    for name, found in stay.items():
        here, near = np.mean(found, axis=0)
        row |= {f"GPU, {name} %": round(100 * float(here), 1), f"node, {name} %": round(100 * float(near), 1)}
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--batches", type=int, default=20, help="batches of each layer")
    given = parser.parse_args()
    record(
        "moe_dispatch",
        [measure(*shape, n_tokens, given.layers, given.batches) for shape in SHAPES for n_tokens in TOKENS],
        is_of_speed=False,
    )


if __name__ == "__main__":
    main()
