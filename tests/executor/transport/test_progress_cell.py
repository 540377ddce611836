"""Where a worker is, seen from both sides."""

import os

from evenload.executor.transport.progress_cell import (
    NOT_BEGUN,
    PACKING,
    UNPACKING,
    ProgressCell,
    make_progress_file,
)


def test_both_sides_see_the_same() -> None:
    fd = make_progress_file()
    worker, executor = ProgressCell(fd), ProgressCell(fd)
    os.close(fd)
    assert executor.position_in(1) == (NOT_BEGUN, 0.0)
    worker.begin(1)
    assert executor.position_in(1)[0] == UNPACKING
    assert executor.position_in(2)[0] == NOT_BEGUN
    worker.at(4)
    position, seconds = executor.position_in(1)
    assert position == 4
    assert 0 <= seconds < 60
    worker.at(PACKING)
    assert executor.position_in(1)[0] == PACKING
    worker.begin(2)
    assert executor.position_in(1)[0] == PACKING, "it has gone on to the next"
    worker.close()
    executor.close()


def test_dropping_a_chunk_drops_those_before_it_and_none_after() -> None:
    place = ProgressCell()
    assert not place.is_dropped(1)
    place.drop(3)
    place.drop(2)
    assert [place.is_dropped(chunk) for chunk in (1, 2, 3, 4)] == [True, True, True, False]
