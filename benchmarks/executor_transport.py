"""What it costs to send arrays to workers and back: GB/s both ways together, CPU milliseconds per item.

    python benchmarks/executor_transport.py [--peers "evenload;Ray tasks"] [--mb 8] [--items 48] [--rounds 5]

Two workers, warm; ``array + 1`` on float64 arrays, one by one, results in input order and checked.
"streamed": a result is dropped before the next is asked for. "kept": all of them are held until the end. Best
of the rounds; CPU is that of all processes. What the function itself takes is in all figures.
"""

from executor_overhead import asked, in_fresh_interpreter, started, told


def measure(peer_name: str, n_bytes: int, n_items: int, n_rounds: int, keeps: bool) -> dict[str, float]:
    import numpy as np
    from bench_tasks import add_one
    from cpu_clock import process_tree_cpu_s
    from peers import all_peers

    from evenload.cli.bench.measure.timing import least_time

    peer = started(all_peers()[peer_name]())
    items = [np.full(n_bytes // 8, float(at)) for at in range(n_items)]

    def send() -> None:
        kept = []
        for at, result in enumerate(peer.imap(add_one, items, 1)):
            assert result[0] == result[-1] == at + 1
            if keeps:
                kept.append(result)

    n_rounds = min(n_rounds, peer.most_rounds + 1)
    best = least_time(send, n_rounds, cpu_clock=process_tree_cpu_s, warms_up=False)
    peer.close()
    return {"gb_s": 2 * n_bytes * n_items / best.wall_s / 1e9, "cpu_ms": best.cpu_s / n_items * 1e3}


def row_of(name: str, n_bytes: int, n_items: int, n_rounds: int) -> dict[str, float | str]:
    row: dict[str, float | str] = {"peer": name}
    for way in ("streamed", "kept"):
        got = in_fresh_interpreter(name, n_bytes, n_items, n_rounds, way == "kept", script=__file__)
        row |= {f"{way}_{key}": value for key, value in got.items()}
    return row


def main() -> None:
    given = asked(__doc__ or "", measure, peers="", mb=8.0, items=48, rounds=5)
    from peers import all_peers

    n_bytes = int(given.mb * 1024 * 1024) // 8 * 8
    # Not Ray Data, whose arrays travel as lists of a column: another thing altogether.
    names = given.peers.split(";") if given.peers else [name for name in all_peers() if name != "Ray Data"]
    rows = [row_of(name, n_bytes, given.items, given.rounds) for name in names]
    told("executor_transport", rows, not given.peers, item_bytes=n_bytes, items=given.items)


if __name__ == "__main__":
    main()
