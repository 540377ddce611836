"""Submissions: every item once and in order, whatever the pace says; the pace learns."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.errors import ConfigError
from evenload.gpu.wgsl import queue as module
from evenload.gpu.wgsl.kernel import WORKGROUP, KernelSource, Storage
from evenload.gpu.wgsl.queue import BUDGET_S, KernelPace, Queue

ADD = KernelSource(
    "add",
    "values[item] = values[item] + params.amount;",
    (Storage("values", "read_write"),),
    params=("amount",),
)
SUM = KernelSource("sum", "out[item] = a[item] + a[item + 1u];", (Storage("a"), Storage("out", "read_write")))


@pytest.mark.parametrize("n", [0, 1, WORKGROUP, WORKGROUP + 1, 5000])
def test_every_item_is_worked_on_once(context, n):
    buffer = context.upload(np.arange(6000, dtype=np.uint32))
    queue = Queue(context)
    queue.dispatch(ADD, [buffer], n, amount=3)
    queue.dispatch(ADD, [buffer], n, first=min(n, 10), amount=100)
    queue.finish()
    expected = np.arange(6000, dtype=np.uint32)
    expected[:n] += 3
    expected[min(n, 10) : n] += 100
    assert context.download(buffer).view(np.uint32).tolist() == expected.tolist()


def test_dispatches_see_what_those_before_them_wrote(context):
    n = 4096
    a, b = context.upload(np.ones(n + 1, np.uint32)), context.upload(np.zeros(n + 1, np.uint32))
    queue = Queue(context)
    first, second = 1, 0
    for k in range(600):  # more than fit one submission
        queue.dispatch(SUM, [a, b] if k % 2 == 0 else [b, a], 1)
        queue.dispatch(ADD, [a if k % 2 else b], 1, amount=0)
        first, second = (first, first + 1) if k % 2 == 0 else (second, second)
    queue.finish()
    assert int(context.download(a, 4).view(np.uint32)[0]) == first


def test_buffers_that_their_maker_forgets_are_not_mixed_up(context):
    """Python gives the address of an object that is gone to the next one: a cache by address must keep it."""
    queue, kept = Queue(context), []
    queue.dispatch(ADD, [context.upload(np.zeros(64, np.uint32))], 64, amount=0)  # compiled and measured
    for k in range(50):
        buffer = context.upload(np.full(64, k, np.uint32))
        queue.dispatch(ADD, [buffer], 64, amount=1)
        if k % 7 == 0:
            kept.append((k, buffer))
        del buffer
    queue.finish()
    for k, buffer in kept:
        assert context.download(buffer).view(np.uint32).tolist() == [k + 1] * 64


def test_a_slow_kernel_is_submitted_in_small_portions(context, monkeypatch):
    pace = KernelPace()
    pace.learn({ADD: 1}, BUDGET_S)
    buffer, sizes = context.upload(np.zeros(1000, np.uint32)), []
    queue = Queue(context, pace)
    submission = queue._submission
    submit = submission.submit

    def watched():
        sizes.append(sum(slot[0] - slot[1] for slot in submission.slots))
        submit()
        return BUDGET_S * sizes[-1]

    monkeypatch.setattr(submission, "submit", watched)
    queue.dispatch(ADD, [buffer], 1000, amount=1)
    queue.finish()
    assert max(sizes) == WORKGROUP
    assert sum(sizes) == 1000
    assert context.download(buffer).view(np.uint32).tolist() == [1] * 1000


def test_wrong_arguments_are_refused(context):
    buffer = context.buffer(16)
    queue = Queue(context)
    for buffers, params in (([], {"amount": 1}), ([buffer], {}), ([buffer], {"amount": 1, "more": 2})):
        with pytest.raises(ConfigError, match="takes 1 buffers"):
            queue.dispatch(ADD, buffers, 1, **params)
    with pytest.raises(ConfigError, match="binds 9 buffers"):
        KernelSource("k", "", tuple(Storage(f"s{k}") for k in range(9)))
    with pytest.raises(ConfigError, match="access"):
        Storage("s", "write")


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(1e-6, 1.0)), min_size=1, max_size=20))
def test_portions_stay_within_the_budget_at_the_pace_that_was_measured(samples):
    pace = KernelPace()
    for n, took_s in samples:
        pace.learn({ADD: n}, took_s)
    most = pace.most_items(ADD, BUDGET_S)
    assert most % WORKGROUP == 0
    assert most == WORKGROUP or pace.seconds(ADD, most) <= BUDGET_S * 1.001
    assert most <= module.MAX_GROUPS * WORKGROUP
