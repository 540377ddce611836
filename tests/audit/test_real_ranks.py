"""Real ranks that are delayed, under torch's profiler: the audit beside what the ranks' own clocks say."""

import subprocess
from collections import Counter

import delayed_ranks
import pytest
from forked_workers import python_command

from evenload.audit.traces import audit_traces

WORLD, STEPS = 2, 12


def test_delays_of_real_ranks(tmp_path):
    """Oracle: each rank notes when it comes to a collective, by a clock that both share.

    Delays are long beside what a loaded machine adds: they are named, and their size is that of the clock.
    """
    torch = pytest.importorskip("torch")
    if not torch.distributed.is_available():
        pytest.skip("this torch has no distributed package")
    program = [*python_command(), str(delayed_ranks.PROGRAM), str(tmp_path)]
    numbers = [str(WORLD), str(STEPS), "5", "60", "120"]
    ranks = [
        subprocess.Popen([*program, str(rank), *numbers], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for rank in range(WORLD)
    ]
    for rank in ranks:
        _, said = rank.communicate(timeout=400)
        assert rank.returncode == 0, said
    found = audit_traces([tmp_path / f"rank{rank}.json.gz" for rank in range(WORLD)])
    true = delayed_ranks.measured(tmp_path, WORLD)
    cost_ns: Counter[int] = Counter()
    for one in found.culprits:
        cost_ns[int(one.device.split()[1])] += one.cost_ns
    assert found.lost_ns["late ranks"] == cost_ns.total()
    for rank in range(WORLD):
        assert cost_ns[rank] == pytest.approx(true.cost_ns[rank], rel=0.25)
    places = Counter({(int(one.device.split()[1]), one.reason): one.n_late for one in found.culprits})
    planned = Counter((rank, place) for rank, place, _ in true.planned)
    assert (planned & places).total() >= STEPS - 2
