import os
import tempfile
from pathlib import Path

import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.devices.probes.cpu import CgroupLimits, cgroup_limits


@pytest.fixture
def machine(tmp_path):
    """Lays out /proc/self and group folders as a kernel shows them: ``machine(cgroup, mounts, files)``."""

    def lay_out(cgroup, mounts, files):
        proc = tmp_path / "proc"
        proc.mkdir()
        (proc / "cgroup").write_bytes(os.fsencode(cgroup))
        (proc / "mountinfo").write_bytes(os.fsencode(mounts.replace("ROOT", escaped(str(tmp_path)))))
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return proc

    lay_out.root = tmp_path
    return lay_out


def escaped(path):
    """The path as a kernel writes it into mountinfo."""
    return "".join(f"\\{ord(c):03o}" if c in " \t\n\\" else c for c in path)


V2 = "30 23 0:26 / ROOT/cg rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def test_v2_the_tightest_on_the_way_up_counts(machine):
    proc = machine(
        "0::/user.slice/job\n",
        V2,
        {
            "cg/user.slice/job/cpu.max": "max 100000\n",
            "cg/user.slice/job/memory.max": "8589934592\n",
            "cg/user.slice/cpu.max": "150000 100000\n",
            "cg/user.slice/memory.max": "1073741824\n",
            "cg/user.slice/memory.current": "4096\n",
        },
    )
    limits = cgroup_limits(proc)
    assert (limits.cpus, limits.memory_bytes) == (1.5, 2**30)
    assert limits.memory_used == machine.root / "cg/user.slice/memory.current"


def test_v2_inside_a_container_the_mount_is_ours(machine):
    proc = machine("0::/../../outside\n", V2, {"cg/cpu.max": "200000 100000\n", "cg/memory.max": "max\n"})
    assert cgroup_limits(proc) == CgroupLimits(cpus=2.0)


def test_v1_with_controllers_apart(machine):
    mounts = (
        "31 23 0:27 /docker/abc ROOT/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        "32 23 0:28 /docker/abc ROOT/memory rw - cgroup cgroup rw,memory\n"
        "33 23 0:29 /docker/abc ROOT/cpuset rw - cgroup cgroup rw,cpuset\n"
    )
    proc = machine(
        "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n3:cpuset:/docker/abc\n0::/\n",
        mounts,
        {
            "cpu/cpu.cfs_quota_us": "50000\n",
            "cpu/cpu.cfs_period_us": "100000\n",
            "memory/memory.limit_in_bytes": "536870912\n",
            "memory/memory.usage_in_bytes": "1024\n",
        },
    )
    limits = cgroup_limits(proc)
    assert (limits.cpus, limits.memory_bytes) == (0.5, 2**29)
    assert limits.memory_used.read_text() == "1024\n"


def test_v1_without_limits(machine):
    mounts = (
        "31 23 0:27 / ROOT/cpu rw - cgroup cgroup rw,cpu\n"
        "32 23 0:28 / ROOT/mem rw - cgroup cgroup rw,memory\n"
    )
    proc = machine(
        "2:cpu:/\n1:memory:/\n",
        mounts,
        {
            "cpu/cpu.cfs_quota_us": "-1\n",
            "cpu/cpu.cfs_period_us": "100000\n",
            "mem/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert cgroup_limits(proc) == CgroupLimits()


def test_no_groups_no_limits(tmp_path, machine):
    assert cgroup_limits(tmp_path / "nothing") == CgroupLimits()
    assert cgroup_limits(machine("0::/\n", "garbage\n", {})) == CgroupLimits()


def test_this_very_machine_can_be_asked():
    limits = cgroup_limits()
    assert limits.cpus is None or limits.cpus > 0
    assert limits.memory_bytes is None or limits.memory_bytes > 0


@pytest.mark.parametrize(
    "name", ["plain", "my jobs", "tab\tand\nline", "back\\slash", "\\040", "ä", "\udcff\udce4"]
)
def test_folders_may_have_any_name(machine, name):
    mounts = V2.replace("/cg", "/" + escaped(name))
    proc = machine(
        "0::/job\n",
        "20 1 8:1 / /mnt/\udcff rw - ext4 /dev/\udcfe rw\n" + mounts,
        {f"{name}/job/cpu.max": "5 2\n"},
    )
    assert cgroup_limits(proc).cpus == 2.5


@settings(max_examples=examples(200))
@given(st.binary(max_size=200), st.binary(max_size=200))
def test_no_bytes_of_the_kernels_files_are_an_error(groups, mounts):
    with tempfile.TemporaryDirectory() as folder:
        for name, noise in (("cgroup", b"0::/\n" + groups), ("mountinfo", V2.encode() + mounts)):
            (Path(folder) / name).write_bytes(noise.replace(b"\0", b""))
        cgroup_limits(Path(folder))
