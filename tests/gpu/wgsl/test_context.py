"""The adapter: tested when it is opened, exact about what it refuses, opened again when it is lost."""

import sys

import numpy as np
import pytest

from evenload.errors import ConfigError, MissingExtra, NoUsableDevice
from evenload.gpu.wgsl.context import Context
from evenload.gpu.wgsl.kernel import KernelSource, Storage
from evenload.gpu.wgsl.queue import Queue

COUNT = KernelSource(
    "count",
    "var counted = 0u; for (var k = 0u; k < params.steps; k = k + 1u) { counted = counted + out[1]; }"
    "out[0] = counted;",
    (Storage("out", "read_write"),),
    params=("steps",),
    iterations=70_000,
)


def test_the_self_test_tells_whether_loops_run_to_their_end(context):
    """What it found is what a kernel that asks for 65,600 iterations sees."""
    raw = KernelSource(COUNT.name, COUNT.body, COUNT.storages, params=COUNT.params, iterations=1)
    out = context.upload(np.array([0, 1], np.uint32))
    queue = Queue(context)
    queue.dispatch(raw, [out], 1, steps=65_600)
    queue.finish()
    counted = int(context.download(out).view(np.uint32)[0])
    assert (counted == 65_600) == (context.max_loop is None)


def test_a_kernel_that_loops_further_or_is_wider_than_the_driver_can_is_refused(context, monkeypatch):
    monkeypatch.setattr(context, "max_loop", None)
    context.refuse_unless_runnable(COUNT)
    monkeypatch.setattr(context, "max_loop", 60_000)
    with pytest.raises(ConfigError, match="loops 70000 times"):
        context.refuse_unless_runnable(COUNT)
    monkeypatch.setattr(context, "has_int64", False)
    with pytest.raises(ConfigError, match="64-bit integers"):
        context.compiled(KernelSource("wide", "", (), needs_int64=True))


@pytest.mark.parametrize("answer", [(7, 21), (65_535, 1), (70_001, 0)])
def test_an_adapter_that_computes_wrongly_is_not_used(context, monkeypatch, answer):
    cap = context.max_loop
    monkeypatch.setattr(context, "download", lambda *_: np.array(answer, np.uint32).view(np.uint8))
    with pytest.raises(NoUsableDevice):
        context._test()
    context.max_loop = cap


@pytest.mark.parametrize("n_bytes", [0, 1, 3, 4, 1000, 65_537])
def test_what_is_uploaded_comes_back(context, n_bytes):
    content = np.random.default_rng(n_bytes).integers(0, 256, n_bytes, dtype=np.uint8)
    buffer = context.upload(content)
    assert context.download(buffer, n_bytes).tobytes() == content.tobytes()
    if n_bytes > 4:
        assert context.download(buffer, n_bytes - 4, 4).tobytes() == content[4:].tobytes()


def test_parts_of_a_buffer(context):
    buffer = context.upload(np.arange(256, dtype=np.uint32))
    assert context.download(buffer.part(256, 8)).view(np.uint32).tolist() == [64, 65]
    for offset, n_bytes in ((4, 8), (256, 0), (256, 800), (-256, 8)):
        with pytest.raises(ConfigError):
            buffer.part(offset, n_bytes)
    with pytest.raises(ConfigError, match="do not fit"):
        context.upload(np.zeros(300, np.uint32), buffer)


@pytest.mark.parametrize(("n", "item_bytes", "step"), [(0, 32, 1), (100, 64, 2), (10_000, 96, 1), (7, 40, 1)])
def test_spans_cover_everything_once_and_fit(context, monkeypatch, n, item_bytes, step):
    monkeypatch.setattr(context, "limits", {"max-storage-buffer-binding-size": 4096})
    spans = list(context.spans(n, item_bytes, step))
    assert [k for span in spans for k in span] == list(range(n))
    assert all(len(span) * item_bytes <= 4096 for span in spans)
    assert all(span.start * item_bytes % 256 == 0 and span.start % step == 0 for span in spans)
    with pytest.raises(ConfigError, match="exceed one binding"):
        list(context.spans(1, 8192))


def test_a_lost_device_is_opened_again_and_the_work_repeated(context, caplog):
    own = Context()
    tries = []

    def work():
        tries.append(own.device)
        buffer = own.upload(np.arange(4, dtype=np.uint32))
        queue = Queue(own)
        queue.dispatch(DOUBLE, [buffer], 4)
        queue.finish()
        return own.download(buffer).view(np.uint32).tolist()

    assert own.run(work) == [0, 2, 4, 6]
    own.device.destroy()  # what a driver's reset looks like from here
    assert own.run(work) == [0, 2, 4, 6]
    assert own.n_losses == 1
    assert tries[1] is tries[0]
    assert tries[2] is not tries[0]
    assert "opening it again" in caplog.text
    own.close()


def test_other_errors_are_not_taken_for_a_loss(context):
    broken = KernelSource("broken", "let x = ;", ())
    for error, work in (
        (ConfigError, lambda: context.buffer(context.limits["max-buffer-size"] + 4)),
        (ZeroDivisionError, lambda: 1 // 0),
        (Exception, lambda: context.compiled(broken)),
    ):
        with pytest.raises(error, match=r"exceeds|zero|pars"):
            context.run(work)
    assert context.n_losses == 0


def test_an_adapter_by_its_uuid_or_one_that_is_gone(context):
    from evenload.devices.probes.wgpu import _described, adapters_here

    rows = _described([adapter.info for adapter in adapters_here()])
    chosen = next(row for row in rows if row["name"] == context.name and row["backend"] != "opengl")
    own = Context(chosen["uuid"])
    assert own.name == context.name
    own.close()
    with pytest.raises(NoUsableDevice, match="no wgpu adapter"):
        Context("vulkan-0000-0000-9")


def test_what_to_install_is_told(context, monkeypatch):
    monkeypatch.setattr("evenload.devices.probes.wgpu.adapters_here", list)
    with pytest.raises(NoUsableDevice) as caught:
        Context()
    assert "mesa-vulkan-drivers" in caught.value.hint
    monkeypatch.setitem(sys.modules, "wgpu", None)
    with pytest.raises(MissingExtra) as caught:
        Context()
    assert caught.value.hint == "pip install 'evenload[zk]'"


DOUBLE = KernelSource("double", "values[item] = values[item] * 2u;", (Storage("values", "read_write"),))
