"""Tests that take longest begin first: begun last, one would run alone while other processes are idle.

Before them all, in one worker of the runner, are those that need a Ray cluster: it takes seconds to start,
and then a part of a core for as long as it lives.
"""

from collections.abc import Sequence

import pytest

LONGEST = (
    "docs/test_documents.py docs/test_doors.py",
    "clients/fused/",
    "benchmarks/test_gpu_parts.py",
    "examples/test_restore.py",
    "pipeline/job/test_names.py",
    "training/",
    "moe/routing/test_device.py",
    "pipeline/run/test_hangs.py",
    "examples/test_edit_and_score.py pipeline/stages/ pipeline/test_batch_edit.py",
    "docs/test_site.py",
    "zk/test_batch.py",
    "executor/test_faults.py",
    "moe/routing/test_gang.py",
    "zk/wgsl/test_key.py",
    "executor/gangs/test_gang.py",
    "moe/adapters/test_layer.py",
    "pipeline/run/test_graph.py",
    "zk/test_snarkjs.py",
    "cli/test_prove.py",
)
"""Parts of their names; the tests of a line stay together, as they share what they have built or loaded."""

LINES = {part: line for line in LONGEST for part in line.split()}


def needs_cluster(item: pytest.Item) -> bool:
    """Whether a test uses the Ray cluster of the session, by name or by a parameter."""
    given = getattr(getattr(item, "callspec", None), "params", {}).values()
    is_on_ray = any(isinstance(one, str) and one == "ray" for one in given)
    return is_on_ray or "ray_head" in getattr(item, "fixturenames", ())


def longest_first(items: Sequence[pytest.Item], n_workers: int) -> list[pytest.Item]:
    """The same tests, so that each worker of the runner, with its equal part, begins with long ones."""
    of_name: dict[str, list[pytest.Item]] = {name: [] for name in LONGEST}
    rest = []
    on_cluster = [item for item in items if needs_cluster(item)]
    for item in items:
        if not needs_cluster(item):
            name = next((line for part, line in LINES.items() if part in item.nodeid), None)
            (rest if name is None else of_name[name]).append(item)
    begin, ordered = [on_cluster, *of_name.values()], []
    for worker in range(n_workers):
        mine = [item for group in begin[worker::n_workers] for item in group]
        n_more = max((len(items) - len(ordered)) // (n_workers - worker) - len(mine), 0)
        ordered += mine + rest[:n_more]
        del rest[:n_more]
    return ordered + rest
