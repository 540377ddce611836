"""What goes into a pipe comes out of it, in whatever pieces it is read."""

import os
import threading

import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.executor.transport.wire import Frame, Inbox, Outbox


def through_a_pipe(frames: list[Frame], piece: int | None = None) -> list[Frame]:
    """Send ``frames`` from another thread, as pieces of ``piece`` bytes if given; read until the end."""
    read, write = os.pipe()

    def feed() -> None:
        if piece is None:
            outbox = Outbox(write)
            for frame in frames:
                assert outbox.send(frame)
        else:
            memory_read, memory_write = os.pipe()
            outbox = Outbox(memory_write)
            for frame in frames:
                outbox.send(frame)
            os.close(memory_write)
            while part := os.read(memory_read, piece):
                os.write(write, part)
            os.close(memory_read)
        os.close(write)

    thread = threading.Thread(target=feed)
    thread.start()
    inbox, received = Inbox(read), []
    try:
        while True:
            received += inbox.read() or []
    except EOFError:
        pass
    thread.join(timeout=500)
    os.close(read)
    return received


def same(sent: Frame, got: Frame) -> bool:
    buffers = [bytes(b) for b in sent.buffers or ()], [bytes(b) for b in got.buffers or ()]
    head = (
        (sent.kind, sent.task, sent.chunk, bytes(sent.body)),
        (got.kind, got.task, got.chunk, bytes(got.body)),
    )
    return head[0] == head[1] and buffers[0] == buffers[1]


frames = st.builds(
    Frame,
    st.integers(0, 255),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.binary(max_size=300),
    st.one_of(st.none(), st.lists(st.binary(max_size=200), max_size=3)),
)


@given(st.lists(frames, max_size=6), st.integers(1, 400))
@settings(max_examples=examples(60), deadline=None)
def test_frames_survive_any_fragmentation(sent: list[Frame], piece: int) -> None:
    got = through_a_pipe(sent, piece)
    assert len(got) == len(sent)
    assert all(same(a, b) for a, b in zip(sent, got, strict=True))


def test_a_pipe_that_does_not_block_queues_what_it_cannot_take() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    os.set_blocking(read, False)
    outbox, inbox = Outbox(write), Inbox(read)
    assert inbox.read() is None
    frame = Frame(1, 2, 3, os.urandom(1_000_000))
    assert outbox.send(Frame(9, body=b"first")) is True
    assert outbox.send(frame) is False
    assert outbox.send(Frame(5, body=b"behind it")) is False
    got: list[Frame] = []
    while len(got) < 3:
        outbox.flush()
        got += inbox.read() or []
    assert outbox.flush() is True
    assert same(got[1], frame)
    assert (got[0].body, got[2].body) == (b"first", b"behind it")
    os.close(read)
    with pytest.raises(BrokenPipeError):
        outbox.send(Frame(1, body=b"nobody reads this"))
    os.close(write)
