"""Gangs: ranks meet, exchange, and end together; whoever fails is named, and nobody is left."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import evenload
from evenload.devices.interpreter_flags import interpreter_flags
from evenload.errors import ConfigError, GangError
from evenload.events import EventLog, Span, StageFinished, StageStarted, WorkerStarted
from evenload.executor import Executor, Rank
from evenload.executor.backends import process
from evenload.executor.backends.process import ProcessBackend
from evenload.executor.gangs import gang as gang_module
from evenload.executor.gangs.fault import RankFault, root_cause
from evenload.executor.gangs.ranks import open_store
from evenload.executor.worker.fork_server import ForkServer, can_fork
from evenload.executor.worker.threads import ONE_THREAD

OTHERS: set[int] = set()

ONE_SERVER = pytest.mark.usefixtures("one_server")


@pytest.fixture(autouse=True)
def time_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is: who is at fault is heard before it is named."""
    monkeypatch.setattr(gang_module, "SETTLE_S", 3.0)
    monkeypatch.setattr(gang_module, "ANSWER_S", 100.0)


@pytest.fixture(autouse=True)
def others() -> None:
    """Processes that are there before: a browser or a cluster of other tests may run on."""
    OTHERS.clear()
    OTHERS.update(process.pid for process in psutil.Process().children())


def no_process_is_left() -> bool:
    return all(process.pid in OTHERS for process in psutil.Process().children())


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    """A fork server that outlives its backends, and imports torch once for them."""
    kept = ForkServer(
        [entry or os.getcwd() for entry in sys.path], {**os.environ, **ONE_THREAD}, interpreter_flags()
    )
    close, kept.close = kept.close, lambda: None  # type: ignore[method-assign]
    yield kept
    close()


@pytest.fixture
def one_server(server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "ForkServer", lambda *_: server)


def summed(rank: Rank, part: np.ndarray, offset: int) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    total = torch.from_numpy(part[rank.share(len(part))].copy()).sum() + offset
    dist.all_reduce(total)
    return {
        "told": (rank.number, rank.size, rank.backend, rank.device.id, rank.device.torch),
        "torch": (dist.get_rank(), dist.get_world_size(), dist.get_backend()),
        "device": os.environ["EVENLOAD_DEVICE"],
        "current": (evenload.current_device().id, evenload.current_device().torch),
        "total": int(total),
        "interface": os.environ.get("GLOO_SOCKET_IFNAME"),
        "is_fork": "libtorch" in Path(f"/proc/{os.getppid()}/maps").read_text() if can_fork() else None,
        "environment": [os.environ[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR")],
    }


def test_ranks_exchange_and_results_come_by_rank() -> None:
    events: list[Any] = []
    rows = [np.arange(10), np.arange(10)]
    got = evenload.gang(summed, (1,), each=rows, devices="cpu*2", events=EventLog(events.append))
    assert [one["told"] for one in got] == [(n, 2, "gloo", f"cpu:{n}", "cpu") for n in range(2)]
    assert [one["torch"] for one in got] == [(n, 2, "gloo") for n in range(2)]
    assert [one["device"] for one in got] == ["cpu:0", "cpu:1"]
    assert [one["current"] for one in got] == [("cpu:0", "cpu"), ("cpu:1", "cpu")]
    assert {one["total"] for one in got} == {45 + 2}
    if can_fork():
        assert all(one["is_fork"] for one in got), "torch was imported once, for all ranks"
    assert [one["environment"] for one in got] == [[str(n), "2", "127.0.0.1"] for n in range(2)]
    if sys.platform == "linux":
        assert {one["interface"] for one in got} == {"lo"}, "what they say stays on this machine"
    assert no_process_is_left()
    kinds = [type(event) for event in events]
    assert kinds.count(WorkerStarted) == 2
    assert (kinds[0], kinds[-1]) == (StageStarted, StageFinished)
    spans = [event for event in events if isinstance(event, Span)]
    assert sorted((span.device, span.status) for span in spans) == [("cpu:0", "ok"), ("cpu:1", "ok")]


def fails(misbehave: Callable[[], Any], **options: Any) -> GangError:
    """What a gang of three says whose rank 1 misbehaves while the others wait for it."""

    def fn(rank: Rank) -> None:
        import torch
        import torch.distributed as dist

        dist.all_reduce(torch.ones(1))
        if rank.number == 1:
            misbehave()
        dist.all_reduce(torch.ones(1))

    with Executor("cpu*3", echo=False) as executor:
        with pytest.raises(GangError) as caught:
            executor.gang(fn, **options)
        assert list(executor.map(abs, [-1])) == [1], "the executor goes on"
    assert no_process_is_left()
    assert (caught.value.rank, caught.value.device) == (1, "cpu:1")
    assert "rank 1 of " in caught.value.message
    assert "on cpu:1" in caught.value.message
    return caught.value


@ONE_SERVER
def test_a_rank_that_raises_ends_the_others_and_is_named() -> None:
    def misbehave() -> None:
        raise KeyError("mine")

    error = fails(misbehave)
    assert "raised KeyError: 'mine'" in error.message
    assert isinstance(error.__cause__, KeyError)
    assert "misbehave" in error.remote_traceback


@ONE_SERVER
def test_a_rank_that_dies_ends_the_others_and_is_named() -> None:
    assert "was killed by SIGKILL" in fails(lambda: os.kill(os.getpid(), signal.SIGKILL)).message


@ONE_SERVER
def test_a_rank_that_hangs_is_told_from_those_that_wait_for_it() -> None:
    error = fails(lambda: time.sleep(1000), timeout_s=4.0)
    assert "did not end within 4 s" in error.message
    assert "<lambda>" in error.remote_traceback, "where it hangs"


@ONE_SERVER
def test_a_rank_that_returns_early_is_named_and_not_who_waits_for_it() -> None:
    """The oracle is the program: rank 1 leaves, and nobody else does anything wrong."""

    def early(rank: Rank) -> None:
        import torch
        import torch.distributed as dist

        if rank.number != 1:
            dist.all_reduce(torch.ones(3))
            dist.all_reduce(torch.ones(3))

    with pytest.raises(GangError) as caught:
        evenload.gang(early, devices="cpu*2", timeout_s=2.0, echo=False)
    assert (caught.value.rank, caught.value.device) == (1, "cpu:1")
    assert "rank 1 of " in caught.value.message
    assert "returned while rank 0 still exchanged with it" in caught.value.message


def waits_in(function: str, rank: int) -> RankFault:
    frames = [
        f'  File "/x/torch/distributed/distributed_c10d.py", line 1 in {function}',
        '  File "/x/torch/distributed/c10d_logger.py", line 2 in wrapper',
        '  File "/own.py", line 3 in fn',
    ]
    return RankFault(rank, "did not end", last_words="\n".join(frames), is_waiting=True)


def test_ranks_that_wait_in_different_exchanges_are_told_with_their_places() -> None:
    fault = root_cause([waits_in("all_gather", 0), waits_in("broadcast", 1)])
    assert "rank 0 in all_gather, rank 1 in broadcast" in fault.what
    assert "all_" not in root_cause([waits_in("all_gather", 0), waits_in("all_gather", 1)]).what


def test_who_returned_first_is_the_cause_only_where_all_others_wait_for_it() -> None:
    waits = [waits_in("all_reduce", 0), waits_in("barrier", 1), waits_in("barrier", 2)]
    assert root_cause(waits, [2, 1]).rank == 2
    died = RankFault(0, "was killed by SIGKILL")
    assert root_cause([*waits, died], [2, 1]) is died
    torn = RankFault(0, "was killed by SIGABRT", last_words="'gloo::EnforceNotMet' 8 vs 4")
    assert root_cause([torn], [1]).rank == 1
    assert "does not fit" in root_cause([torn]).what


@ONE_SERVER
def test_a_gang_of_one_needs_no_other_and_no_time_passes_while_all_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, poll, stopped_s = time.monotonic, ProcessBackend.poll, [0.0]

    def is_stopped_meanwhile(self: ProcessBackend, timeout_s: float | None) -> list:
        messages = poll(self, timeout_s)
        stopped_s[0] += 1000.0
        return messages

    monkeypatch.setattr(ProcessBackend, "poll", is_stopped_meanwhile)
    monkeypatch.setattr(time, "monotonic", lambda: clock() + stopped_s[0])
    one = evenload.gang(lambda rank: (rank.number, rank.size), devices="cpu*1", timeout_s=900)
    assert one == [(0, 1)]


def test_what_makes_no_gang_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="side by side"):
        evenload.gang(summed, devices="cpu*2", backend="inline")
    with pytest.raises(ConfigError, match="3 values, the gang 2 ranks"):
        evenload.gang(summed, devices="cpu*2", each=[1, 2, 3])
    with pytest.raises(ConfigError, match="leaves no time"):
        evenload.gang(summed, devices="cpu*2", timeout_s=0)


# --- whose fault ----------------------------------------------------------------------------------


def test_the_store_listens_to_this_machine_only() -> None:
    with open_store("127.0.0.1") as (_, port):
        listening = [one for one in psutil.Process().net_connections("tcp") if one.laddr.port == port]
        assert {one.laddr.ip for one in listening} == {"127.0.0.1"}


@pytest.mark.parametrize(("n", "size"), [(10, 3), (2, 4), (0, 2), (7, 1)])
def test_shares_are_neighbours_that_cover_everything(n: int, size: int) -> None:
    device = evenload.devices.current()
    shares = [Rank(number, size, device, "gloo").share(n) for number in range(size)]
    assert [at for share in shares for at in range(n)[share]] == list(range(n))
    lengths = [share.stop - share.start for share in shares]
    assert max(lengths) - min(lengths) <= 1
