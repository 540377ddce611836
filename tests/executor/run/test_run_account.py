"""What the workers did for a run is counted for its summary."""

from evenload.executor.decide.record import Record
from evenload.executor.decide.scheduler import Send
from evenload.executor.decide.summary import Summary
from evenload.executor.run.run_account import RunAccount, SentChunk
from evenload.executor.task.answer import Answer


def account_of(*devices: str) -> RunAccount:
    return RunAccount(Record(None, echo=False), "map", {device: {} for device in devices})


def answered(account: RunAccount, device: str, item: int, busy_s: float, n_first: int = 1) -> None:
    send = Send(item, device, range(item, item + 1), "", n_first == 0, False)
    chunk = SentChunk(item, None, send, f"{device}/1", 0.0)
    account.answered(chunk, device, Answer([None], {}, 1.0, 1.0 + busy_s, busy_s), n_first=n_first)


def closed(account: RunAccount, n_items: int, wall_s: float, startup_s: float) -> Summary:
    return account.close(n_items, None, 0.0, wall_s, startup_s, {}, "")


def test_counts_bound_and_shares() -> None:
    """The oracle is arithmetic: 8 items at 1 + 0.5 items a second; what came second is busy time alone."""
    account = account_of("fast", "slow", "idle")
    for item in range(6):
        answered(account, "fast", item, 1.0)
    for item in (6, 7):
        answered(account, "slow", item, 2.0)
    answered(account, "slow", 0, 1.0, n_first=0)
    account.n_failed = 1
    summary = closed(account, 8, wall_s=6.9, startup_s=0.5)
    assert (summary.total, summary.done, summary.failed) == (8, 7, 1)
    assert abs(summary.bound_s - 8 / 1.5) < 1e-9
    assert summary.ratio_to_bound is not None
    assert abs(summary.ratio_to_bound - 1.2) < 1e-9
    assert summary.devices["slow"].busy_s == 5.0
    assert (summary.devices["slow"].items, summary.devices["slow"].chunks) == (2, 2)
    assert summary.devices["fast"].utilisation == 6.0 / 6.9
    assert abs(summary.imbalance - 6.0 / (11.0 / 3)) < 1e-9
    assert summary.to_json()["schema"] == 1
    assert summary.to_json()["devices"]["fast"]["items"] == 6
