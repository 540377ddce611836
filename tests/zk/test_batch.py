"""Batches over several devices: which kernels each runs, order, failures, priorities, time limits."""

import pytest
from reference import plain_prover as oracle

from evenload.devices import Device, DevicePool
from evenload.errors import ConfigError, NoUsableDevice, TaskTimeout
from evenload.gpu.wgsl.adapters import adapters_of
from evenload.zk.batch import TimedRequest, prove_batch
from evenload.zk.proving_devices import CPU, ProvingDevice, proving_devices
from evenload.zk.worker import ProvedStatement, ProveRequest

pytest.importorskip("llvmlite", reason="the extra kernels is not installed")

from evenload.zk import Prover, read_zkey, verify


def gpu(name, index=0, **facts):
    return Device(f"{name}:{index}", "discrete", "cuda", f"GPU {index}", **facts)


FOUND = [
    gpu("cuda", 0),
    gpu("cuda", 1),
    gpu("wgpu", 0, uuid="first", same_as="cuda:1"),
    gpu("wgpu", 1, uuid="second"),
    Device("cpu:0", "cpu", "cpu", "CPU"),
]


def test_a_gpu_named_by_cuda_is_reached_through_its_twin():
    assert adapters_of(FOUND, FOUND) == {
        "cuda:0": None,
        "cuda:1": "first",
        "wgpu:0": "first",
        "wgpu:1": "second",
    }
    assert adapters_of([FOUND[4]], []) == {}


def test_each_device_with_the_kernels_that_it_runs(monkeypatch):
    monkeypatch.setattr(DevicePool, "discover", classmethod(lambda cls: cls(FOUND)))
    assert proving_devices(DevicePool([FOUND[1], FOUND[4], FOUND[3]])) == (
        ProvingDevice("cuda:1", "wgsl", "first"),
        ProvingDevice("cpu:0", "cpu"),
        ProvingDevice("wgpu:1", "wgsl", "second"),
    )
    assert proving_devices(None) == (CPU,)
    assert proving_devices(None, "wgsl") == (ProvingDevice("wgpu", "wgsl"),)
    with pytest.raises(NoUsableDevice, match="cuda:0"):
        proving_devices(DevicePool([FOUND[0]]))


def test_a_batch_over_processes(public8):
    """And again with warm workers; a reason for each request that is bad. A GPU is in ``cli/test_prove``."""
    good = str(public8 / "witness.wtns")
    requests = [good, ProveRequest(good, priority=3), [1, 2], ProveRequest(good, public=[1]), good]
    with Prover(public8 / "circuit.zkey", devices="cpu*2") as prover:
        for policy in (None, "static"):
            results = prover.prove_batch_parallel(requests, policy=policy)
            for k in (0, 1, 4):
                assert oracle.verify(prover.verification_key, results[k].public, results[k].proof)
            assert [type(results[k]).__name__ for k in (2, 3)] == ["ConfigError", "ConfigError"]
            assert "2 values" in str(results[2])
            assert "expected public inputs" in str(results[3])
        stats = prover.stats
        assert (stats.n_proved, stats.n_failed, stats.n_redone) == (6, 4, 0)
        assert prover.prove_batch_parallel([]) == []
        with pytest.raises(ConfigError, match="each of 2 devices has one worker"):
            prover.prove_batch_parallel(requests, num_workers=5)


def test_workers_are_on_the_devices_in_turn(public8, context):
    with Prover(public8 / "circuit.zkey", devices="cpu*1,wgpu:0") as prover:
        assert prover.spawn_worker("wgpu:0").key.level.startswith("wgsl")
        assert prover.spawn_worker("cpu:0").key is prover.key
        assert len({prover.spawn_worker().key.level for _ in range(2)}) == 2
        with pytest.raises(ConfigError, match="none of this prover's devices"):
            prover.spawn_worker("cuda:7")


@pytest.mark.parametrize("policy", ["pull", "guided", "factoring", "static:proportional", "measured"])
def test_every_policy_proves_the_same(multiplier, policy):
    """In this process, so that five runs start no workers."""
    witnesses = [str(multiplier / "witness.wtns")] * 5
    options = {"policy": policy, "backend": "inline"}
    results = list(prove_batch(multiplier / "circuit.zkey", witnesses, "cpu*1", **options))
    key = read_zkey(multiplier / "circuit.zkey").verification_key
    assert all(isinstance(done, ProvedStatement) for done in results)
    assert oracle.verify(key, results[0].public, results[0].proof)
    assert all(verify(key, done.public, done.proof) for done in results)


def test_the_time_limit_counts_from_submission(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("evenload.zk.batch.time.time", lambda: now[0])
    short, long, without = [TimedRequest(ProveRequest("x", timeout_s=limit)) for limit in (0.001, 60, None)]
    short.check()
    for later, late, limit in ((0.01, short, r"0\.001"), (60, long, "60")):
        now[0] += later
        with pytest.raises(TaskTimeout, match=f"within {limit} s"):
            late.check()
    without.check()


def test_an_open_file_is_read_once(multiplier):
    """Also when a failed proof needs the key a second time."""
    with (multiplier / "circuit.zkey").open("rb") as file:
        prover = Prover(file)
    with prover, pytest.raises(Exception, match="pairing equation"):
        prover.prove([1, 34, 3, 11])
